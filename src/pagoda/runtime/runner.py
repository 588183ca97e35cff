"""Executes step plans: rows, batch, model, sampler. One class for all devices."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from pagoda.arch.spec import ModelSpec
from pagoda.base.log import get_logger
from pagoda.core.grammar import Grammars
from pagoda.core.kvcache.spec import GroupSpec, attention_groups, state_groups
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.layers.batch import ForwardBatch
from pagoda.models.base import DraftHead
from pagoda.planner.captured import CapturedSize
from pagoda.runtime.adapters import ResidentAdapters
from pagoda.runtime.alignment import watched_heads
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import Bytes, CacheMemory
from pagoda.runtime.device import Device, to_tensor
from pagoda.runtime.host_blocks import HostBlocks
from pagoda.runtime.media import MediaEncoder, RequestMedia
from pagoda.runtime.model import Model
from pagoda.runtime.pooling import Pooler
from pagoda.runtime.profile import StepTimes
from pagoda.runtime.reports import Reports
from pagoda.runtime.sampling.head import OutputHead
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.sampling.sampler import (
    CHANGES,
    FirstMax,
    Sampled,
    choose,
    most_likely,
    sample,
)
from pagoda.runtime.sleep import OffloadedTensors, tensors_of
from pagoda.runtime.speculation.drafter import HeadDrafter
from pagoda.runtime.speculation.select import make_drafter
from pagoda.runtime.states import Fault, RequestStates, Scheduled
from pagoda.runtime.steps.captured import CapturedSteps
from pagoda.runtime.steps.inputs import build_batch
from pagoda.runtime.steps.launched import LaunchedStep
from pagoda.runtime.steps.prepared import PreparedStep, encoded_step
from pagoda.runtime.steps.program import Computed, StepLimits
from pagoda.runtime.steps.replays import Replays
from pagoda.runtime.steps.results import Results, left_out
from pagoda.runtime.steps.warm_up import first_plans
from pagoda.text.media.base import Processor

logger = get_logger(__name__)

# With nobody waiting for a token: until then a new request waits.
_ENCODE_SECONDS = 0.1
# Needs that are more than a token.
_REPORTS = Needs.LOGPROBS | Needs.PROMPT_LOGPROBS | Needs.POOL


@dataclass(eq=False)
class ModelRunner:
    """Holds the KV caches and the requests' rows, and turns plans into results.

    A fault in one request is that request's `error`; it stays faulty until it is freed.
    """

    model: Model
    spec: ModelSpec
    groups: list[GroupSpec]
    num_slabs: int
    device: Device
    max_num_reqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_host_slabs: int = 0
    """As `num_slabs`, of the host's memory for blocks that make room in the pool."""
    seed: int = 0
    grammars: Grammars | None = None
    """None: requests with a grammar are refused."""
    processors: Mapping[str, Processor] = field(default_factory=dict)
    """Processors of media, by kind; none: requests with media are refused."""
    kept_media_bytes: int = 0
    """Bytes of media's embeddings that are kept for later steps and requests."""
    eager: bool = False
    """Run steps op by op."""
    draft_head: DraftHead | None = None
    """What guesses tokens from the model's hidden states."""
    draft_model: Model | None = None
    """What guesses tokens by itself, as `spec.draft_model` describes it."""
    max_num_samples: int = 0
    """Rows of logits in a step; at least one for each request."""
    captured_bytes: int = 0
    """Most that captured steps may take on a GPU; 0 captures none."""
    captured_sizes: tuple[CapturedSize, ...] = ()
    """Which are."""
    adapters: ResidentAdapters | None = None
    """None: the model has no room for adapters."""

    def __post_init__(self) -> None:
        self.times = StepTimes()
        self.head = OutputHead(self.model)
        self._step: PreparedStep | None = None
        """The last one."""
        self._launched: LaunchedStep | None = None
        """The last step, where its tokens were not waited for."""
        self._offloaded: OffloadedTensors | None = None
        """The weights, while they are not on the device."""
        self.media: MediaEncoder | None = None
        vision = self.spec.vision
        if self.processors:
            self.media = MediaEncoder(
                lambda: self.model.encoders,
                self.processors,
                self.kept_media_bytes,
                both_ways=vision is not None and vision.both_ways,
                synchronize=self.device.synchronize,
            )
        self.model.reserve(self.max_model_len)
        if self.draft_head is not None:
            self.draft_head.reserve(self.max_num_batched_tokens)
        self.cache = CacheMemory(self.groups, self.num_slabs, self.device)
        self.host_blocks = HostBlocks(self.cache, self.groups, self.num_host_slabs, self.device)
        self.states = RequestStates(
            self._block_sizes,
            has_states=bool(state_groups(self.groups)),
            vocab_size=self.spec.vocab_size,
            max_num_reqs=self.max_num_reqs,
            max_model_len=self.max_model_len,
            seed=self.seed,
            grammars=self.grammars,
            make_media=partial(
                RequestMedia, tokens_per_second=vision.tokens_per_second if vision else None
            )
            if self.media is not None
            else None,
        )
        self.states.heard = self.spec.heard
        if self.adapters is not None:
            self.states.take_adapters(self.adapters)
        pooler = Pooler(
            self.spec.pooling.method,
            self.model.classify if self.spec.pooling.labels else None,
            self.model.project if self.spec.pooling.dense else None,
        )
        self._reports = Reports(self.model, self.spec.vocab_size, self.states, pooler)
        reqs = self.max_num_reqs
        self.replays = Replays(
            self.model, self.cache, self._block_sizes, self.states.has_states,
            StepLimits(
                self.max_num_batched_tokens, reqs, max(reqs, self.max_num_samples),
                self.max_model_len,
            ),
            self.device, self.captured_bytes, self.captured_sizes,
            self.device.tile_tuning(self.model, self.max_num_batched_tokens),
            has_adapters=self.adapters is not None,
        )  # fmt: skip
        self._drafter = make_drafter(
            self.draft_head, self.draft_model, self.spec, self.cache, self.states, self.device,
            StepLimits(self.max_num_batched_tokens, reqs, reqs, self.max_model_len),
            eager=self.eager,
        )  # fmt: skip
        self._drafts: dict[int, list[int]] = {}
        """What was guessed behind the last step's tokens."""

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan. Results come in the plan's order, one per planned request."""
        begun = time.perf_counter()
        return self._complete(plan, self._begin(plan), begun)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Queue a plan's work on a device that runs ahead; the call of what is returned waits for
        the result. One plan may be launched before the last one's result is asked for, not two.
        Steps that report more than tokens, verify drafts or encode pictures are waited for here.
        """
        begun = time.perf_counter()
        step = self._begin(plan)
        waits = step is None or step.needs & _REPORTS or plan.drafts
        if step is None or waits or plan.encode:
            result = self._complete(plan, step, begun)
            return lambda: result
        computed = self._timed_forward(step)
        done = time.perf_counter()
        if step.needs & CHANGES:
            self._wait_for_last()  # What was generated before decides what comes next.
        best, broken = self._choose_on_device(step, computed)
        fetch = self.device.fetch(best.values, best.ids)
        self._launched = LaunchedStep(plan, step, self.states, best.ids, fetch, broken)
        self.times.add("sample", time.perf_counter() - done)
        self.times.count(plan.num_tokens)
        self.replays.capture_needed()
        return self._launched.wait

    def _choose_on_device(
        self, step: PreparedStep, computed: Computed
    ) -> tuple[FirstMax, dict[int, Fault]]:
        """The tokens on the device, and what is known to be wrong already."""
        logits, places = computed.logits, step.places
        if logits is None:
            nothing = computed.hidden_states[:0, 0]
            return FirstMax(nothing, nothing.long()), {}
        if step.needs == 0:
            return computed.greedy or self.head.first_max(logits), {}
        rows = step.plan.rows[places.owners]
        return choose(logits, rows, places.positions, self.states, computed.greedy, self.times)

    def _begin(self, plan: StepPlan) -> PreparedStep | None:
        begun, encoding = time.perf_counter(), self.times.seconds["media"]
        step = self._prepare(plan)
        begun += self.times.seconds["media"] - encoding
        self.times.add("host", time.perf_counter() - begun)
        return step

    def _complete(self, plan: StepPlan, step: PreparedStep | None, begun: float) -> StepResult:
        results = Results()
        computed = step.plan.req_ids if step is not None else []
        self._drafts, drafting = {}, self.times.seconds["draft"]
        tokens = self._compute(step, results, plan.num_drafts) if step is not None else []
        for place in left_out(plan, step):
            req_id, row = plan.req_ids[place], int(plan.rows[place])
            self._fail(results[req_id], row, self.states.fault(row))
        result = results.of(plan, computed, tokens)
        result.drafts = self._drafts
        result.draft_seconds = self.times.seconds["draft"] - drafting
        self.times.count(plan.num_tokens)
        result.encoded = self._encode_ahead(plan, time.perf_counter() - begun)
        self.replays.capture_needed()
        return result

    def sleep(self) -> None:
        """Give back the memory of the caches, and that of a GPU's weights, which wait on the host.
        No request is known, and nothing is computed until `wake_up`."""
        self._step = self._launched = None
        self.device.synchronize()
        self.replays.drop()
        if self.media is not None:
            self.media.forget()
        if self.device.name != "cpu" and self._offloaded is None:
            self._offloaded = OffloadedTensors(tensors_of([self.model, self.draft_model]))
        self.cache.discard()
        self.host_blocks.discard()

    def wake_up(self) -> None:
        if self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        self.cache.restore()

    def load_adapter(self, slot: int, identity: str, parts: Sequence[tuple[str, float]]) -> None:
        """As `ResidentAdapters.load`; no request has what the slot held."""
        assert self.adapters is not None  # nobody else has slots
        self.adapters.load(slot, identity, parts)

    def work_ahead(self) -> bool:
        """While no request runs and the weights are there: make later steps faster, for some 100 ms
        (seconds where experts' tiles are measured). False when nothing is left to do."""
        if self.replays.work_ahead():
            return True
        if self.device.kernel_log is not None:
            self.device.kernel_log.report("Later steps")
        return False

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one of the group's blocks]."""
        return self.cache.read(group, blocks)

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None:
        """Put back what `read_blocks` gave, into blocks that nobody reads meanwhile."""
        self.cache.write(group, blocks, data)

    def warm_up(self) -> int:
        """Record a step where that can be done, and run a prefill and a decode step, so that the
        first request pays for no first calls; on a GPU of several sizes, as kernels are compiled.

        Returns the tokens of the longest one: few, for the largest step takes a second and more.
        Leaves nothing behind but meaningless keys and values in block 0; call it before serving.
        """
        self.record()
        most = 0 if self.device.name == "cpu" else self.max_num_batched_tokens
        length, plans = first_plans(self.spec, self._block_sizes, self.max_model_len, most)
        for plan in plans:
            for result in self.execute(plan).results:
                if result.error is not None:
                    logger.warning("The warm-up step failed: %s", result.error)
        self.replays.capture_usual()
        self.device.synchronize()
        if self.device.kernel_log is not None:
            self.device.kernel_log.report("First steps")
        self.times = StepTimes()
        return length

    def _encode_ahead(self, plan: StepPlan, seconds: float) -> list[str]:
        """Work on the media of later steps for as long as this step took: its streams then wait
        twice as long for a token, and not until a picture is done."""
        if self.media is None:
            return []
        begun = time.perf_counter()
        encoded = self.media.work(plan.encode, seconds if plan.req_ids else _ENCODE_SECONDS)
        self.times.add("media", time.perf_counter() - begun)
        return encoded

    def record(self) -> None:
        """Have steps replayed, where that can be done."""
        if self.eager or self.spec.encoder is not None:
            return
        drafter = self._drafter
        passes = drafter.capture if isinstance(drafter, HeadDrafter) else None
        self.replays.record(self.head, passes)

    @property
    def _block_sizes(self) -> list[int]:
        """Block sizes of the attention groups."""
        return [group.block_size for group in attention_groups(self.groups)]

    def _prepare(self, plan: StepPlan) -> PreparedStep | None:
        """What is to be computed of a plan; None if nothing is."""
        last, self._step = self._step, None
        self.states.update(plan)
        self.host_blocks.copy(plan.copies)
        tokens_follow = self._launched is not None and not self._launched.is_done
        if last is not None and last.advance(plan, self.states, tokens_follow):
            step: PreparedStep | None = last
        else:
            step = self._encoded(self.states.schedule(plan))
            if step is not None:
                step.step_id = plan.step_id
        self._step = step
        return step

    def _encoded(self, scheduled: Scheduled) -> PreparedStep | None:
        return encoded_step(scheduled, self.states, self.media, self.times)

    def _compute(self, step: PreparedStep, results: Results, num_drafts: int) -> list[int]:
        """As `_sample`, with what else requests ask for in `results`."""
        computed = self._timed_forward(step)
        self._wait_for_last()
        done = time.perf_counter()
        if step.needs & (Needs.PROMPT_LOGPROBS | Needs.POOL):
            for place, fault in self._reports.add(step, computed, results).items():
                req_id, row = step.plan.req_ids[place], int(step.plan.rows[place])
                self._fail(results[req_id], row, fault)
        tokens, accepted = self._sample(step, computed, results)
        self.times.add("sample", time.perf_counter() - done)
        self._drafts = self._draft(step, computed, accepted, num_drafts)
        return tokens

    def _draft(
        self, step: PreparedStep, computed: Computed, accepted: Ints, num_drafts: int
    ) -> dict[int, list[int]]:
        """Guess tokens behind those that the step's requests gained."""
        if self._drafter is None:
            return {}
        begun = time.perf_counter()
        try:
            return self._drafter.draft(step, computed.hidden_states, accepted, num_drafts)
        except Exception:
            self._drafter = None
            self.replays.drop_passes()  # or what fails would be captured while nobody waits
            logger.exception("Nothing is guessed any more, which costs speed only: it failed.")
            return {}
        finally:
            self.times.add("draft", time.perf_counter() - begun)

    def _wait_for_last(self) -> None:
        """Have the tokens of the step before this one in the rows."""
        if self._launched is not None:
            self._launched.wait()
            self._launched = None

    def _timed_forward(self, step: PreparedStep) -> Computed:
        begun = time.perf_counter()
        computed = self._forward(step)
        self.times.add("forward", time.perf_counter() - begun)
        return computed

    def _forward(self, step: PreparedStep) -> Computed:
        """Hidden states of the step's tokens, and logits where a token is sampled."""
        arrays, samples = step.arrays, step.places.hidden_rows
        program = self.replays.program_for(step)
        if program is not None:
            if self._launched is None or self._launched.is_done:
                return program.run(arrays, samples)
            assert isinstance(program, CapturedSteps)  # steps of a CPU are waited for
            return program.run(arrays, samples, partial(self._launched.fill, step=step))
        device = self.device.torch_device
        batch = build_batch(arrays, self.cache, device)
        if self._launched is not None and not self._launched.is_done:
            self._launched.fill(batch.token_ids, step)
        hidden_states = self._pass(step, batch)
        if not len(samples):
            return Computed(hidden_states, None, watched=batch.watched)
        logits = self.head.logits(_take(hidden_states, samples))
        return Computed(hidden_states, logits, self.head.first_max(logits), batch.watched)

    def _pass(self, step: PreparedStep, batch: ForwardBatch) -> torch.Tensor:
        """The model's pass over a step's batch, op by op: hidden states."""
        if self.media is not None and step.arrays.media:
            self.media.fill(batch, step.arrays.media, step.encoded)
        if step.needs & Needs.ALIGN:
            batch.watched = watched_heads(step, self.states, batch.token_ids.device)
        return self.model.forward(batch)

    def _sample(
        self, step: PreparedStep, computed: Computed, results: Results
    ) -> tuple[list[int], Ints]:
        """Sample behind the last known token and behind each draft of the sampling requests. Where
        each request has one token and nothing is wrong: these; else nothing, for `results` has
        all. Besides, how many tokens each of them gained."""
        plan, places, logits = step.plan, step.places, computed.logits
        if logits is None or not len(places.requests):
            return [], np.zeros(0, np.int64)
        sampled = self._choose(step, computed, logits)
        faulty = {int(places.owners[row]): fault for row, fault in sampled.faults.items()}
        for i, fault in faulty.items():
            self._fail(results[plan.req_ids[i]], int(plan.rows[i]), fault)
        accepted = self.states.accept(plan, places, sampled.tokens, faulty)
        return results.take(step, sampled, accepted), accepted

    def _choose(self, step: PreparedStep, computed: Computed, logits: torch.Tensor) -> Sampled:
        if step.needs == 0 and computed.greedy is not None:
            return most_likely(computed.greedy)
        places, rows = step.places, step.plan.rows[step.places.owners]
        return sample(logits, rows, places.positions, self.states, computed.greedy, self.times)

    def _fail(self, result: RequestResult, row: int, fault: Fault) -> None:
        self.states.faults[row] = fault
        result.error, result.bad_request = fault


def _take(hidden_states: torch.Tensor, rows: Ints) -> torch.Tensor:
    """Rows in rising order; all of them need no copy."""
    if len(rows) == len(hidden_states):
        return hidden_states
    return hidden_states[to_tensor(rows, hidden_states.device)]
