"""What the host works out before a step is computed."""

import time
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from pagoda.core.plan import StepPlan
from pagoda.runtime.block_table import Ints
from pagoda.runtime.media import MediaEncoder
from pagoda.runtime.profile import StepTimes
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.states import Fault, RequestStates, SamplePlaces, Scheduled, state_blocks
from pagoda.runtime.steps.inputs import StepArrays, step_arrays


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
    step_id: int = 0
    """Its plan's."""
    follows: bool = False
    """Its requests are those of the step before, each a token further."""

    @classmethod
    def of(cls, plan: Scheduled, states: RequestStates) -> Self:
        flags = states.params["flags"][plan.rows]
        generating = np.flatnonzero(plan.samples & ((flags & Needs.POOL) == 0))
        return cls(
            plan=plan,
            arrays=step_arrays(plan, states),
            flags=flags,
            needs=int(np.bitwise_or.reduce(flags)),
            places=SamplePlaces.of(plan, generating),
        )

    def advance(self, plan: StepPlan, states: RequestStates, tokens_follow: bool) -> bool:
        """Become the step behind this one, if the plan follows its plan; without its tokens if they
        follow. False, with nothing changed, where something is in the way.

        Only positions move then. Preparing each step from its plan was over half of what a step of
        one request spent outside kernels (docs/development/log.md).
        """
        scheduled, arrays = self.plan, self.arrays
        all_last = plan.step_id == self.step_id + 1 and len(scheduled.rows) == len(plan.req_ids)
        if not plan.follows or not all_last or states.faults or arrays.media:
            return False
        ends = plan.starts + 1
        entering = arrays.steps_left <= 1
        if entering and not all(
            table.have_room(scheduled.rows, ends).all() for table in states.tables
        ):
            return False
        self.step_id, self.follows = plan.step_id, True
        scheduled.starts, scheduled.ends = plan.starts, self.places.positions = plan.starts, ends
        if plan.states:
            scheduled.states = state_blocks(plan)
        arrays.move_on(scheduled, states)
        if not tokens_follow:
            arrays.token_ids[:] = states.token_ids[scheduled.rows, scheduled.starts]
        return True


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
