"""What the host works out before a step is computed."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Self

import numpy as np
import torch

from pagoda.core.plan import PlannedRequest, StepPlan
from pagoda.runtime import params as need
from pagoda.runtime.inputs import GroupArrays, StepArrays, step_arrays
from pagoda.runtime.states import Ints, RequestStates, SamplePlaces, Scheduled

_req_id, _start, _num_tokens = map(attrgetter, ("req_id", "num_computed_tokens", "num_tokens"))
_samples, _drafts, _new_blocks = map(attrgetter, ("samples", "draft_token_ids", "new_block_ids"))


@dataclass
class PreparedStep:
    plan: Scheduled
    arrays: StepArrays
    flags: Ints
    """What each request needs (`params`)."""
    needs: int
    """All of them together."""
    places: SamplePlaces
    encoded: dict[str, torch.Tensor] = field(default_factory=dict)
    """The pictures in it, by their contents (`MediaEncoder`)."""

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

    Most steps are of this kind, and only positions move from one to the next: the arrays of the
    first step are moved on in place. Preparing each step from its plan was over half of what a
    step of one request spent outside kernels (docs/log.md).
    """

    def __init__(self, step: PreparedStep, states: RequestStates):
        self.step = step
        self._states = states
        scheduled = step.plan
        self._moving = np.stack([scheduled.starts, scheduled.ends])
        scheduled.starts, scheduled.ends = self._moving
        step.places.positions = scheduled.ends
        self._left: list[Ints] = [
            table.block_size - scheduled.starts % table.block_size for table in states.tables
        ]
        """Of each request, the steps to its next block, since one last entered one."""
        self._span = self._until = self._soonest()
        """The fewest of them, then and now."""

    @classmethod
    def begin(cls, step: PreparedStep, plan: StepPlan, states: RequestStates) -> Self | None:
        """The run that a step begins; None if it is of another kind."""
        if not step.places.one_each or len(step.places.requests) != len(plan.requests):
            return None
        if step.arrays.num_tokens != len(plan.requests) or step.arrays.media:
            return None
        return cls(step, states)

    def advance(self, plan: StepPlan) -> bool:
        """Make `step` the next plan's; False, with nothing changed, if that ends the run."""
        if not plan.again and not self._continues(plan):
            return False
        entering = None
        if self._until == 1:
            entering = [np.flatnonzero(left == self._span) for left in self._left]
            if not self._have_blocks(plan.requests, entering):
                return False
        self._grow(plan.requests)
        scheduled, arrays, states = self.step.plan, self.step.arrays, self._states
        self._moving += 1
        arrays.positions += 1
        arrays.kv_lens += 1
        arrays.token_ids[:] = states.token_ids[scheduled.rows, scheduled.starts]
        if arrays.states is not None:
            moved = np.array([request.states for request in plan.requests], np.int32)
            arrays.states.read[:], arrays.states.write[:] = moved.T
        self._until -= 1
        if entering is not None:
            self._enter_blocks(entering)
        else:
            for group in arrays.groups:
                group.slot_mapping += 1
        return True

    def _continues(self, plan: StepPlan) -> bool:
        """Whether the plan is `again` without saying so."""
        scheduled, requests = self.step.plan, plan.requests
        if plan.freed or plan.rows or len(requests) != len(scheduled.req_ids):
            return False
        starts = (scheduled.starts + 1).tolist()
        return (
            list(map(_start, requests)) == starts
            and list(map(_req_id, requests)) == scheduled.req_ids
            and max(starts) < self._states.max_model_len
            and set(map(_num_tokens, requests)) == {1}
            and all(map(_samples, requests))
            and not any(map(_drafts, requests))
        )

    def _have_blocks(self, requests: list[PlannedRequest], entering: list[Ints]) -> bool:
        """Whether those that enter a block, by table, have it or get it."""
        scheduled = self.step.plan
        for index, (table, those) in enumerate(zip(self._states.tables, entering, strict=True)):
            held = table.used[scheduled.rows[those]] * table.block_size
            for i in those[held <= scheduled.ends[those]].tolist():
                block_ids = requests[i].new_block_ids
                if not block_ids or not block_ids[index]:
                    return False
        return True

    def _grow(self, requests: list[PlannedRequest]) -> None:
        grown = [i for i, blocks in enumerate(map(_new_blocks, requests)) if blocks]
        if not grown:
            return
        rows = self.step.plan.rows
        for index, (table, group) in enumerate(
            zip(self._states.tables, self.step.arrays.groups, strict=True)
        ):
            added = [requests[i].new_block_ids[index] for i in grown]
            if all(len(blocks) == 1 for blocks in added):
                table.append_one(rows[grown], [blocks[0] for blocks in added])
            else:
                for i, blocks in zip(grown, added, strict=True):
                    table.append(int(rows[i]), blocks)
            group.block_table = GroupArrays.table_of(table, rows)

    def _enter_blocks(self, entering: list[Ints]) -> None:
        """The next slots, now that some requests are in their next block."""
        scheduled = self.step.plan
        groups = zip(self._states.tables, self.step.arrays.groups, strict=True)
        for (table, group), those, left in zip(groups, entering, self._left, strict=True):
            group.slot_mapping += 1
            blocks = scheduled.starts[those] // table.block_size
            first = table.entries[scheduled.rows[those], blocks].astype(np.int64)
            group.slot_mapping[those] = first * table.block_size
            left -= self._span
            left[those] = table.block_size
        self._span = self._until = self._soonest()

    def _soonest(self) -> int:
        return min(int(left.min()) for left in self._left)
