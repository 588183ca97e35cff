"""What the host works out before a step is computed."""

import time
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from pagoda.core.plan import StepPlan
from pagoda.runtime import params as need
from pagoda.runtime.inputs import StepArrays, next_arrays, step_arrays
from pagoda.runtime.media import MediaEncoder
from pagoda.runtime.profile import StepTimes
from pagoda.runtime.states import (
    Fault,
    Ints,
    RequestStates,
    SamplePlaces,
    Scheduled,
    state_blocks,
)


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
    follows: bool = False
    """Its requests are those of the step before, each a token further."""

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

    def next(self, plan: StepPlan, states: RequestStates) -> "PreparedStep | None":
        """The step behind this one, if the plan has the same requests generate a token more, as
        most plans do; else None.

        Only positions move then. Preparing each step from its plan was over half of what a step of
        one request spent outside kernels (docs/log.md).
        """
        mine, places, rows = self.plan, self.places, self.plan.rows
        changes = plan.new_rows or plan.drafts or plan.unsampled or states.faults
        if changes or self.arrays.media or not places.one_each:
            return None
        if plan.rows is not rows and not np.array_equal(plan.rows, rows):
            return None
        ends = plan.starts + plan.lens
        if not self.arrays.num_tokens == plan.num_tokens == len(rows):
            return None
        if ends.max() > states.max_model_len:
            return None
        moved = (plan.starts == mine.ends) & (states.lengths[rows] == ends)
        if not moved.all():
            return None
        if not all(table.have_room(rows, ends).all() for table in states.tables):
            return None
        scheduled = Scheduled(
            mine.req_ids, rows, plan.starts, ends, mine.num_drafts, mine.samples, state_blocks(plan)
        )
        places = SamplePlaces(
            places.requests, places.first, places.owners, ends, places.hidden_rows, one_each=True
        )
        arrays = next_arrays(self.arrays, scheduled, states)
        return PreparedStep(scheduled, arrays, self.flags, self.needs, places, follows=True)


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
            states.faults[int(scheduled.rows[part.request])] = fault
            faulty.add(part.request)
    times.add("media", time.perf_counter() - begun)
    if not faulty:
        return step
    healthy = [i for i in range(len(scheduled.req_ids)) if i not in faulty]
    return encoded_step(scheduled.select(np.array(healthy, np.int64)), states, media, times)
