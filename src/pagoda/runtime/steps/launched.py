"""A step whose tokens are still being computed while the host goes on."""

from dataclasses import dataclass

import numpy as np
import torch

from pagoda.core.plan import StepPlan, StepResult
from pagoda.runtime.block_table import Ints
from pagoda.runtime.device import Fetch, to_tensor
from pagoda.runtime.sampling.sampler import row_faults
from pagoda.runtime.states import Fault, RequestStates
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.results import Results, left_out


@dataclass(eq=False)
class LaunchedStep:
    """One token of each sampling request, chosen on the device and not yet seen here.

    The step behind this one takes them where they are (`fill`); the host's rows and the result
    get them once they are there (`wait`).
    """

    plan: StepPlan
    step: PreparedStep
    states: RequestStates
    tokens: torch.Tensor
    """int64 [sampled] on the device."""
    fetch: Fetch
    """Each row's largest logit, and `tokens`."""
    faults: dict[int, Fault]
    """Sampled rows that had no token to choose from."""

    def __post_init__(self) -> None:
        scheduled, places, states = self.step.plan, self.step.places, self.states
        self._result: StepResult | None = None
        self._rows: Ints = scheduled.rows
        if not places.one_token_each:
            self._rows = scheduled.rows[places.owners]
        self._positions: Ints = places.positions
        self._departed: Ints = states.departed[self._rows]
        self._left_out = {
            self.plan.req_ids[place]: states.fault(int(self.plan.rows[place]))
            for place in left_out(self.plan, self.step)
        }
        states.promise(self._rows, self._positions)

    @property
    def is_done(self) -> bool:
        return self._result is not None

    def fill(self, token_ids: torch.Tensor, step: PreparedStep) -> None:
        """Put the tokens into int64 token_ids [tokens] of the next step, where the host has none
        yet."""
        if step.follows:
            token_ids.copy_(self.tokens)
            return
        scheduled, departed = step.plan, self.states.departed
        nobody = len(self._rows)
        sampled = np.full(len(departed), nobody)
        sampled[self._rows] = np.arange(nobody)
        sampled = sampled[scheduled.rows]
        requests = np.flatnonzero(sampled < nobody)
        sampled = sampled[requests]
        positions, starts = self._positions[sampled], scheduled.starts[requests]
        wanted = self._departed[sampled] == departed[scheduled.rows[requests]]
        wanted &= (starts <= positions) & (positions < scheduled.ends[requests])
        if wanted.any():
            places = (step.arrays.query_start[requests] + positions - starts)[wanted]
            taken = self.tokens[to_tensor(sampled[wanted], self.tokens.device)]
            token_ids[to_tensor(places, token_ids.device)] = taken

    def wait(self) -> StepResult:
        """Wait for the tokens, and take them up where their requests are still there. Again: the
        same result."""
        if self._result is None:
            top, chosen = self.fetch()
            self._result = self._take_up(chosen, row_faults(top) | self.faults)
        return self._result

    def _take_up(self, chosen: Ints, faults: dict[int, Fault]) -> StepResult:
        plan, places, states = self.plan, self.step.places, self.states
        alive = self._departed == states.departed[self._rows]
        if alive.all() and not faults:
            states.store_tokens(self._rows, self._positions, chosen)
        else:
            good = alive.copy()
            good[list(faults)] = False
            states.store_tokens(self._rows[good], self._positions[good], chosen[good])
        tokens: list[int] = chosen.tolist()
        if places.one_token_each and not faults and not self._left_out:
            return StepResult(step_id=plan.step_id, tokens=tokens)
        results = Results()
        for req_id, fault in self._left_out.items():
            results[req_id].error, results[req_id].bad_request = fault
        owners = [self.step.plan.req_ids[owner] for owner in places.owners.tolist()]
        for row, (req_id, token) in enumerate(zip(owners, tokens, strict=True)):
            if row in faults:
                results[req_id].error, results[req_id].bad_request = faults[row]
                if alive[row]:
                    states.faults[int(self._rows[row])] = faults[row]
            else:
                results[req_id].token_ids = [token]
        return results.of(plan, [], [])
