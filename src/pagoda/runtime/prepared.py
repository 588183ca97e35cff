"""What the host works out before a step is computed."""

import time
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from pagoda.core.plan import StepPlan
from pagoda.runtime import params as need
from pagoda.runtime.inputs import GroupArrays, StepArrays, step_arrays
from pagoda.runtime.media import MediaEncoder
from pagoda.runtime.profile import StepTimes
from pagoda.runtime.states import Fault, Ints, RequestStates, SamplePlaces, Scheduled

# So many blocks fit into a block table that has become too narrow before it is made anew.
_SPARE_BLOCKS = 16


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


def encoded_step(
    scheduled: Scheduled, states: RequestStates, media: MediaEncoder | None, times: StepTimes
) -> PreparedStep | None:
    """The step of what is scheduled, with its pictures encoded, which `times` takes note of.
    Requests whose pictures cannot be are left out, and None is left of nothing."""
    if not scheduled.req_ids:
        return None
    step = PreparedStep.of(scheduled, states)
    if not step.arrays.media:
        return step
    assert media is not None  # else `states` lets none in
    begun, faulty = time.perf_counter(), set()
    for part in step.arrays.media:
        try:
            step.encoded[part.item.content_hash] = media.encoded(part.item)
        except (OSError, ValueError, RuntimeError) as error:
            fault = Fault(f"An image could not be encoded: {error}.")
            states.faults[scheduled.req_ids[part.request]] = fault
            faulty.add(part.request)
    times.add("media", time.perf_counter() - begun)
    if not faulty:
        return step
    healthy = [i for i in range(len(scheduled.req_ids)) if i not in faulty]
    return encoded_step(scheduled.select(np.array(healthy, np.int64)), states, media, times)


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
        self._places = {req_id: place for place, req_id in enumerate(scheduled.req_ids)}
        self._all = np.arange(len(scheduled.rows))
        self._until = 0
        """Steps until some request enters its next block."""
        self._enter_blocks()

    @classmethod
    def begin(cls, step: PreparedStep, plan: StepPlan, states: RequestStates) -> Self | None:
        """The run that a step begins; None if it is of another kind."""
        if not step.places.one_each or len(step.places.requests) != len(plan.req_ids):
            return None
        if step.arrays.num_tokens != len(plan.req_ids) or step.arrays.media:
            return None
        return cls(step, states)

    def advance(self, plan: StepPlan, tokens_follow: bool = False) -> bool:
        """Make `step` the next plan's, without its tokens if they follow; False, with nothing
        changed, if that ends the run."""
        if not plan.again and not self._continues(plan):
            return False
        entering = self._until == 1
        if entering and not plan.again and not self._have_blocks(plan):
            return False
        if plan.new_blocks:
            self._grow(plan)
        scheduled, arrays, states = self.step.plan, self.step.arrays, self._states
        self._moving += 1
        arrays.positions += 1
        arrays.kv_lens += 1
        if not tokens_follow:
            arrays.token_ids[:] = states.token_ids[scheduled.rows, scheduled.starts]
        if arrays.states is not None:
            arrays.states.read[:], arrays.states.write[:] = np.array(plan.states, np.int32).T
        self._until -= 1
        if entering:
            self._enter_blocks()
        else:
            for group in arrays.groups:
                group.slot_mapping += 1
        return True

    def _continues(self, plan: StepPlan) -> bool:
        """Whether the plan is `again` without saying so."""
        scheduled = self.step.plan
        if plan.freed or plan.rows or plan.drafts or plan.unsampled:
            return False
        starts = (scheduled.starts + 1).tolist()
        return (
            [start + plan.ahead for start in plan.starts] == starts
            and plan.req_ids == scheduled.req_ids
            and max(starts) < self._states.max_model_len
            and set(plan.lens) == {1}
        )

    def _have_blocks(self, plan: StepPlan) -> bool:
        """Whether those that enter a block have it or get it."""
        scheduled = self.step.plan
        for index, table in enumerate(self._states.tables):
            full = table.used[scheduled.rows] * table.block_size <= scheduled.ends
            for place in np.flatnonzero(full).tolist():
                block_ids = plan.new_blocks.get(plan.req_ids[place])
                if not block_ids or not block_ids[index]:
                    return False
        return True

    def _grow(self, plan: StepPlan) -> None:
        rows = self.step.plan.rows
        places = np.array([self._places[req_id] for req_id in plan.new_blocks])
        for index, (table, group) in enumerate(
            zip(self._states.tables, self.step.arrays.groups, strict=True)
        ):
            added = [blocks[index] for blocks in plan.new_blocks.values()]
            if set(map(len, added)) == {1}:
                firsts = np.array([blocks[0] for blocks in added], np.int32)
                columns = table.append_one(rows[places], firsts)
                if not group.grow(places, columns, firsts):
                    group.block_table = GroupArrays.table_of(table, rows, _SPARE_BLOCKS)
            else:
                for row, blocks in zip(rows[places].tolist(), added, strict=True):
                    table.append(row, blocks)
                group.block_table = GroupArrays.table_of(table, rows)

    def _enter_blocks(self) -> None:
        """The slots of the step, some requests being in other blocks than before."""
        untils = []
        groups = zip(self._states.tables, self.step.arrays.groups, strict=True)
        for table, group in groups:
            blocks, offsets = np.divmod(self.step.plan.starts, table.block_size)
            group.slot_mapping[:] = group.block_table[self._all, blocks]
            group.slot_mapping *= table.block_size
            group.slot_mapping += offsets
            untils.append(table.block_size - int(offsets.max()))
        self._until = min(untils)
