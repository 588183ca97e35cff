"""What the host works out before a step is computed."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from pagoda.core.plan import PlannedRequest, StepPlan
from pagoda.runtime import params as need
from pagoda.runtime.inputs import GroupArrays, StepArrays, step_arrays
from pagoda.runtime.states import Ints, RequestStates, SamplePlaces, Scheduled


@dataclass
class PreparedStep:
    plan: Scheduled
    arrays: StepArrays
    flags: Ints
    """What each request needs (`params`)."""
    needs: int
    """All of them together."""
    places: SamplePlaces

    @classmethod
    def of(cls, plan: Scheduled, states: RequestStates) -> Self:
        flags = states.params["flags"][plan.rows]
        generating = np.flatnonzero(plan.samples & ((flags & need.POOL) == 0))
        return cls(
            plan=plan,
            arrays=step_arrays(plan, states),
            flags=flags,
            needs=int(np.bitwise_or.reduce(flags)),
            places=SamplePlaces.of(plan, generating),
        )


class DecodeRun:
    """Steps in a row in which the same requests generate one token each.

    Most steps are of this kind, and only positions move from one to the next. Preparing each from
    its plan was over half of what a step of one request spent outside kernels (docs/log.md).
    """

    def __init__(self, step: PreparedStep, states: RequestStates):
        self.step = step
        self._states = states
        self._starts: list[int] = step.plan.starts.tolist()

    @classmethod
    def begin(cls, step: PreparedStep, plan: StepPlan, states: RequestStates) -> Self | None:
        """The run that a step begins; None if it is of another kind."""
        count = len(step.places.requests)
        if count != len(plan.requests) or step.arrays.num_tokens != count:
            return None
        return cls(step, states)

    def advance(self, plan: StepPlan) -> bool:
        """Make `step` the next plan's; False, with nothing changed, if that ends the run."""
        if plan.freed or plan.rows or not self._continues(plan.requests):
            return False
        scheduled, states = self.step.plan, self._states
        positions = scheduled.ends
        blocks = [positions // table.block_size for table in states.tables]
        grown = [request.new_block_ids for request in plan.requests]
        for index, (table, needed) in enumerate(zip(states.tables, blocks, strict=True)):
            for i in np.flatnonzero(needed >= table.used[scheduled.rows]).tolist():
                if not grown[i] or not grown[i][index]:
                    return False
        self._append(grown)
        self._starts = [start + 1 for start in self._starts]
        scheduled.starts, scheduled.ends = positions, positions + 1
        self.step.places.positions = scheduled.ends
        arrays = self.step.arrays
        arrays.token_ids = states.token_ids[scheduled.rows, positions].astype(np.int64)
        arrays.positions = positions
        arrays.kv_lens = scheduled.ends.astype(np.int32)
        for table, group, block in zip(states.tables, arrays.groups, blocks, strict=True):
            first = table.entries[scheduled.rows, block].astype(np.int64) - block
            group.slot_mapping = first * table.block_size + positions
        return True

    def _continues(self, requests: list[PlannedRequest]) -> bool:
        ids, starts = self.step.plan.req_ids, self._starts
        if len(requests) != len(ids):
            return False
        last = self._states.max_model_len - 1
        return all(
            request.req_id == req_id
            and request.num_computed_tokens == start + 1 <= last
            and request.num_tokens == 1
            and request.samples
            and not request.draft_token_ids
            for request, req_id, start in zip(requests, ids, starts, strict=True)
        )

    def _append(self, grown: list[list[list[int]]]) -> None:
        rows = self.step.plan.rows
        for index, (table, group) in enumerate(
            zip(self._states.tables, self.step.arrays.groups, strict=True)
        ):
            new = [i for i, block_ids in enumerate(grown) if block_ids and block_ids[index]]
            for i in new:
                table.append(int(rows[i]), grown[i][index])
            if new:
                group.block_table = GroupArrays.table_of(table, rows)
