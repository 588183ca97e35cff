"""The runners of a pipeline, whose stages have some of the model's layers each.

Every rank has every plan, and computes its part of it once the stage before has handed on what it
goes on from. The last stage gives rank 0 the most likely token of each row, whole logits of rows
that need them, and what requests ask for beside tokens; rank 0 samples, as it does for ranks that
share layers. So it may start a step while later stages compute those before it, whose requests sit
out until their tokens are known.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.layers.batch import ForwardBatch
from pagoda.runtime.ranks import FollowingRunner, LeadingRunner, RankRunner
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.sampling.sampler import FirstMax
from pagoda.runtime.states import Fault
from pagoda.runtime.steps.inputs import build_batch
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import Computed
from pagoda.runtime.steps.results import Results

# What is made of hidden states, which only the last stage has.
_REPORTED = Needs.PROMPT_LOGPROBS | Needs.POOL


class _Reported(msgspec.Struct):
    """What the last stage found out about a step's requests."""

    results: list[RequestResult]
    faults: dict[int, Fault]
    """By places in the plan."""


@dataclass(eq=False)
class _StageRunner(RankRunner):
    def _forward(self, step: PreparedStep) -> Computed:
        if self.group.is_last:
            return super()._forward(step)
        batch = build_batch(step.arrays, self.cache, self.device.torch_device)
        return Computed(self._pass(step, batch), None)

    def _pass(self, step: PreparedStep, batch: ForwardBatch) -> torch.Tensor:
        if self.group.stage == 0:
            computed = super()._pass(step, batch)
        else:
            if self.media is not None and step.arrays.media:
                self.media.let_see(batch, step.arrays.media)
            shape = (batch.num_tokens, self.model.carried_size)
            device = self.device.torch_device
            batch.carried = self.group.handed_on(torch.empty(shape, device=device))
            computed = self.model.forward(batch)
        if not self.group.is_last:
            self.group.hand_on(computed.contiguous())
        return computed


@dataclass(eq=False)
class StageLeader(LeadingRunner, _StageRunner):
    """Rank 0's."""

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Compute the first stage of a plan; the call of what is returned waits for the others. As
        many plans as there are stages may be under way, whose results are asked for in order. None
        is planned before its requests' tokens are known."""
        begun = time.perf_counter()
        step, whole = self._begin(plan), self._whole
        if step is None:
            result = self._complete(plan, step, begun)
            return lambda: result
        self._timed_forward(step)

        @torch.inference_mode()
        def finish() -> StepResult:
            self._whole = whole
            return self._complete(plan, step, begun)

        return finish

    def _compute(self, step: PreparedStep, results: Results, num_drafts: int) -> list[int]:
        """By what the last stage gives back."""
        if step.needs & _REPORTED:
            self._take_reports(step, results)
        if not len(step.places.requests):
            return []
        rows, vocab = len(step.places.owners), self.spec.vocab_size
        given = self.group.given_back(torch.empty(2 * rows + len(self._whole) * vocab))
        values, ids = given[: 2 * rows].view(2, rows)
        greedy = FirstMax(values, ids.view(torch.int32).long())
        logits = given[2 * rows :].view(-1, vocab).to(self.device.torch_device)
        return self._sample(step, Computed(logits, logits, greedy), results)[0]

    def _whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """They came so."""
        return logits

    def _take_reports(self, step: PreparedStep, results: Results) -> None:
        size = int(self.group.given_back(torch.empty(1, dtype=torch.int64)))
        raw = self.group.given_back(torch.empty(size, dtype=torch.uint8))
        told = msgspec.msgpack.decode(raw.numpy().tobytes(), type=_Reported)
        for result in told.results:
            results[result.req_id] = result
        for place, fault in told.faults.items():
            self._fail(results[step.plan.req_ids[place]], int(step.plan.rows[place]), fault)


@dataclass(eq=False)
class StageFollower(FollowingRunner, _StageRunner):
    """Any other rank's."""

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        result = self.execute(plan)
        return lambda: result

    def _compute(self, step: PreparedStep, results: Results, num_drafts: int) -> list[int]:
        computed = self._timed_forward(step)
        if len(step.places.requests):
            self._unsampled.append(step)
        if self.group.is_last:
            self._give_back(step, computed, results)
        return []

    def _give_back(self, step: PreparedStep, computed: Computed, results: Results) -> None:
        """All ranks of the last stage work on it, and the first one sends it."""
        sends = self.group.parallel.rank == 0
        if step.needs & _REPORTED:
            faults = self._reports.add(step, computed, results)
            raw = msgspec.msgpack.encode(_Reported(list(results.values()), faults))
            if sends:
                self.group.give_back(torch.tensor([len(raw)]))
                self.group.give_back(torch.from_numpy(np.frombuffer(raw, np.uint8).copy()))
        if computed.logits is None or computed.greedy is None:
            return
        # The bits of an int32, which nobody computes with before they are an int32 again.
        values, ids = computed.greedy.values, computed.greedy.ids.int().view(torch.float32)
        parts = [values.float(), ids]
        if len(self._whole):
            parts.append(self._whole_logits(computed.logits).flatten())
        if sends:
            self.group.give_back(torch.cat(parts).cpu())
