"""The runners of ranks that share a model: rank 0 leads, and the others follow it.

All compute the same steps on the same rows, each with its share of heads, experts and features.
Rank 0 alone samples: masks of grammars have time limits, and two ranks that disagree on whether one
was passed would compute different batches. The others append its tokens before their next step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from pagoda.base.log import get_logger
from pagoda.core.plan import RequestResult, StepPlan
from pagoda.core.ranks import RankStep
from pagoda.runtime.prepared import PreparedStep
from pagoda.runtime.program import Computed, StepProgram
from pagoda.runtime.rank_group import RankGroup
from pagoda.runtime.runner import ModelRunner
from pagoda.runtime.sampler import Sampled
from pagoda.runtime.states import Fault, Scheduled

logger = get_logger(__name__)


@dataclass(eq=False)
class LeadingRunner(ModelRunner):
    """Rank 0's."""

    group: RankGroup = field(kw_only=True)
    tell: Callable[[RankStep], None] = field(kw_only=True)
    """Sends a step to all other ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sampled: tuple[list[int], list[int]] = ([], [])

    def _record(self) -> StepProgram | None:
        logger.info("Steps run op by op: ranks exchange tensors on the way.")
        return None

    def _prepare(self, plan: StepPlan) -> PreparedStep | None:
        step = super()._prepare(plan)
        computed = [] if step is None else step.plan.req_ids
        left_out: list[str] = []
        if len(computed) < len(plan.requests):
            left_out = [req.req_id for req in plan.requests if req.req_id not in set(computed)]
        # fp32 holds the bits of every dtype of activations.
        pictures = {} if step is None else {k: x.float() for k, x in step.encoded.items()}
        shapes = [(name, list(picture.shape)) for name, picture in pictures.items()]
        self.tell(RankStep(plan, left_out, *self._sampled, shapes))
        self._sampled = ([], [])
        for picture in pictures.values():
            self.group.broadcast(picture.contiguous())
        return step

    def _choose(self, step: PreparedStep, computed: Computed, logits: torch.Tensor) -> Sampled:
        sampled = super()._choose(step, computed, logits)
        self._sampled = (sampled.tokens.tolist(), list(sampled.faults))
        return sampled


@dataclass(eq=False)
class FollowingRunner(ModelRunner):
    """Any other rank's; `follow` takes the place of `execute`. Its results mean nothing."""

    group: RankGroup = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unsettled: PreparedStep | None = None
        """The last step, until it is known what was sampled."""
        self._pictures: list[tuple[str, list[int]]] = []

    def follow(self, step: RankStep) -> None:
        """Compute what rank 0 computes. Any error leaves the ranks at different places."""
        self._take_sampled(step)
        self._pictures = step.pictures
        plan, left_out = step.plan, set(step.left_out)
        for row in plan.rows:
            if row.request is not None:
                row.request.grammar = None
        if left_out:
            plan.requests = [req for req in plan.requests if req.req_id not in left_out]
        self.execute(plan)

    def _take_sampled(self, step: RankStep) -> None:
        last, self._unsettled = self._unsettled, None
        if last is None:
            return
        faulty = {int(last.places.owners[row]) for row in step.faulty}
        if faulty:
            self._run = None
        self.states.accept(last.plan, last.places, np.array(step.sampled, np.int64), faulty)

    def _prepare(self, plan: StepPlan) -> PreparedStep | None:
        step = super()._prepare(plan)
        found = 0 if step is None else len(step.plan.req_ids)
        if found != len(plan.requests):
            raise RuntimeError(
                f"Of {len(plan.requests)} requests that rank 0 computes, this rank knows {found}; "
                "please report this."
            )
        return step

    def _encoded(self, scheduled: Scheduled) -> PreparedStep | None:
        if not scheduled.req_ids:
            return None
        step = PreparedStep.of(scheduled, self.states)
        for content_hash, shape in self._pictures:
            picture = torch.empty(shape, device=self.device.torch_device)
            self.group.broadcast(picture)
            step.encoded[content_hash] = picture
        return step

    def _encode_ahead(self, plan: StepPlan, seconds: float) -> list[str]:
        return []

    def _sample(
        self, step: PreparedStep, computed: Computed, results: dict[str, RequestResult]
    ) -> None:
        if computed.logits is not None and len(step.places.requests):
            self._unsettled = step

    def _fail(self, result: RequestResult, fault: Fault) -> None:
        """Whether a request can go on is for rank 0 to say."""
