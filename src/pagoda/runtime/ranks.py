"""The runners of ranks that share a model: rank 0 leads, and the others follow it.

All compute the same steps on the same rows, each with its share of heads, experts and features.
The most likely tokens are known to all, for each tells the largest logit of its part of the
vocabulary. Whole logits are gathered for rows that need them, whose tokens rank 0 alone samples:
masks of grammars have time limits, and two ranks that disagree on whether one was passed would
compute different batches. Where steps are waited for, tokens go out with the next plan. Where a
device runs ahead, rank 0 sends those that it sampled from device to device behind the step; each
rank takes them from there into its next step, and into its rows once they have come.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from pagoda.base.log import get_logger
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.ranks import RankBlocks, RankCapture, RankSampled, RankStep, RankTiles
from pagoda.layers.batch import ForwardBatch
from pagoda.planner.captured import CapturedSize
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import Bytes
from pagoda.runtime.device import to_tensor
from pagoda.runtime.rank_group import RankGroup
from pagoda.runtime.runner import ModelRunner
from pagoda.runtime.sampling.head import SplitHead
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.sampling.sampler import (
    CHANGES,
    FirstMax,
    Sampled,
    choose,
    most_likely,
    sample,
)
from pagoda.runtime.states import Fault, Scheduled
from pagoda.runtime.steps.captured import CapturedSteps, Outputs
from pagoda.runtime.steps.graphs import Graph
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import Computed
from pagoda.runtime.steps.results import Results

logger = get_logger(__name__)

# What takes more than the largest logit.
_WHOLE = CHANGES | Needs.RANDOM | Needs.LOGPROBS | Needs.SHARES


class OutOfStepError(Exception):
    """This rank failed where the others wait for it: none can go on."""


@dataclass(eq=False)
class CapturedTogether(CapturedSteps):
    """Decode steps that all ranks capture, in one order between the same steps: their exchanges
    are in the graphs. Rank 0 says when; what one rank cannot capture none does."""

    group: RankGroup = field(kw_only=True)
    tell: Callable[[RankCapture], None] = field(kw_only=True)

    def capture(self, size: CapturedSize) -> None:
        self.tell(RankCapture(*size))
        super().capture(size)

    def capture_needed(self) -> bool:
        return self.group.parallel.rank == 0 and super().capture_needed()

    def _first_pass(self, size: CapturedSize) -> tuple[ForwardBatch, Outputs]:
        with _in_step():
            return super()._first_pass(size)

    def _recorded(self, size: CapturedSize, batch: ForwardBatch, like: Outputs) -> Graph:
        try:
            graph = super()._recorded(size, batch, like)
        except RuntimeError:
            self.group.agree(False)
            raise
        if not self.group.agree(True):
            raise RuntimeError("another rank could not")
        return graph

    def _repeats(self, graph: Graph, expected: torch.Tensor) -> bool:
        with _in_step():
            return self.group.agree(super()._repeats(graph, expected))

    def _report(self, count: str, more: str = "") -> None:
        if more or self.group.parallel.rank == 0:
            super()._report(count, more)


@contextmanager
def _in_step() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise OutOfStepError(f"A decode step failed while it was captured: {error}") from error


@dataclass(eq=False)
class RankRunner(ModelRunner):
    group: RankGroup = field(kw_only=True)
    tell: Callable[[RankStep | RankCapture | RankBlocks | RankTiles], None] = field(
        kw_only=True, default=lambda order: None
    )
    """Sends something to all other ranks; to none from one that follows."""

    def __post_init__(self) -> None:
        # A CPU's recorded step holds no exchange between ranks.
        self.eager |= self.device.graph_maker() is None
        super().__post_init__()
        self.replays.kind = partial(CapturedTogether, group=self.group, tell=self.tell)
        self.head = SplitHead(self.model, self.group.parallel, self.spec.vocab_size)
        self._whole: Ints = np.zeros(0, np.int64)
        """Rows of the step's logits that are gathered."""

    def _whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """From this rank's logits [rows, part] to [whole rows, vocab] of all ranks."""
        if len(self._whole) < len(logits):
            logits = logits[to_tensor(self._whole, logits.device)]
        return self.group.parallel.gathered(logits, self.spec.vocab_size)

    def _all_parts(self, part: Bytes) -> Bytes:
        """uint8 [blocks, bytes of a block on all ranks], of uint8 [blocks, bytes on this one]. All
        ranks call it."""
        gathered = self.group.gather_all(to_tensor(part, self.device.torch_device))
        whole: Bytes = gathered.cpu().numpy()
        return whole

    def _write_part(self, group: int, blocks: Sequence[int], whole: torch.Tensor) -> None:
        """This rank's part of rank 0's uint8 [blocks, bytes of a block on all ranks]. All ranks
        call it."""
        self.group.broadcast_all(whole)
        part = whole.chunk(self.group.num_ranks, dim=1)[self.group.rank]
        self.cache.write(group, blocks, part.cpu().numpy())


@dataclass(eq=False)
class LeadingRunner(RankRunner):
    """Rank 0's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sampled: list[RankSampled] = []
        """What the others have yet to hear of."""

    def record(self) -> None:
        super().record()
        if self.replays.program is None:
            logger.info("Steps run op by op.")

    def work_ahead(self) -> bool:
        """As on one device; all ranks take the tiles that this one measured."""
        tiles = self.replays.tiles
        more = super().work_ahead()
        if tiles is not None and self.replays.tiles is None and tiles.changed:
            self.tell(RankTiles(tiles.rows))
        return more

    def execute(self, plan: StepPlan) -> StepResult:
        """Launched where the device runs ahead, for so do the others."""
        return self.launch(plan)() if self.device.runs_ahead else super().execute(plan)

    def _prepare(self, plan: StepPlan) -> PreparedStep | None:
        step = super()._prepare(plan)
        computed = [] if step is None else step.plan.req_ids
        left_out: list[int] = []
        if len(computed) < len(plan.req_ids):
            known = set(computed)
            left_out = [i for i, req_id in enumerate(plan.req_ids) if req_id not in known]
        self._whole = self._whole_rows(step)
        # fp32 holds the bits of every dtype of activations.
        pictures = {} if step is None else {k: x.float() for k, x in step.encoded.items()}
        shapes = [(name, list(picture.shape)) for name, picture in pictures.items()]
        self.tell(RankStep(plan, left_out, self._sampled, self._whole.tolist(), shapes))
        self._sampled = []
        for picture in pictures.values():
            self.group.broadcast(picture.contiguous())
        return step

    def _whole_rows(self, step: PreparedStep | None) -> Ints:
        """Rows of its logits that need more than the largest."""
        if step is None or not step.needs & _WHOLE:
            return np.zeros(0, np.int64)
        return np.flatnonzero(step.flags[step.places.owners] & _WHOLE)

    def _choose(self, step: PreparedStep, computed: Computed, logits: torch.Tensor) -> Sampled:
        assert computed.greedy is not None
        sampled, rows = most_likely(computed.greedy), self._whole
        if len(rows):
            where = self._where(step)
            sampled.replace(
                rows, sample(self._whole_logits(logits), *where, self.states, times=self.times)
            )
        self._sampled.append(RankSampled(sampled.tokens.tolist(), list(sampled.faults)))
        return sampled

    def _choose_on_device(
        self, step: PreparedStep, computed: Computed
    ) -> tuple[FirstMax, dict[int, Fault]]:
        rows, best = self._whole, computed.greedy
        if not len(rows) or best is None or computed.logits is None:
            return super()._choose_on_device(step, computed)
        logits = self._whole_logits(computed.logits)
        chosen, broken = choose(logits, *self._where(step), self.states, times=self.times)
        self.group.broadcast(chosen.ids)
        best.put(rows, chosen)
        return best, {int(rows[row]): fault for row, fault in broken.items()}

    def _where(self, step: PreparedStep) -> tuple[Ints, Ints]:
        """The rows of `states` and the positions that the step's whole rows are of."""
        places = step.places
        return step.plan.rows[places.owners[self._whole]], places.positions[self._whole]

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one of the group's blocks on all ranks]."""
        part = self.cache.read(group, blocks)
        if not len(blocks):
            return np.zeros((0, part.shape[1] * self.group.num_ranks), np.uint8)
        self.tell(RankBlocks(group, list(blocks), writes=False))
        return self._all_parts(part)

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None:
        """Put back what `read_blocks` gave, on all ranks."""
        self.tell(RankBlocks(group, list(blocks), writes=True))
        # Copied: a mapped file's pages are read-only, which torch does not know.
        self._write_part(group, blocks, to_tensor(np.array(data), self.device.torch_device))


@dataclass(eq=False)
class FollowingRunner(RankRunner):
    """Any other rank's; `follow` takes the place of `execute`. Its results mean nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.record()
        self._unsampled: deque[PreparedStep] = deque()
        """Steps of which it is not known yet what was sampled."""
        self._pictures: list[tuple[str, list[int]]] = []
        self._wait_before: Callable[[], object] = lambda: None
        """Takes up the last step's tokens, where that was launched."""

    def follow(self, step: RankStep) -> None:
        """Compute what rank 0 computes. Any error leaves the ranks at different places."""
        self._take_sampled(step.sampled)
        self._pictures = step.pictures if self.group.stage == 0 else []
        self._whole = np.array(step.whole, np.int64)
        plan = step.plan.without(step.left_out) if step.left_out else step.plan
        for row in plan.new_rows:
            if row.request is not None:
                row.request.grammar = None
        if not self.device.runs_ahead:
            self.execute(plan)
            return
        wait_before, self._wait_before = self._wait_before, self.launch(plan)
        wait_before()

    def capture(self, size: CapturedSize) -> None:
        """Capture what rank 0 captures; any error is as one of `follow`."""
        assert isinstance(self.replays.program, CapturedSteps)
        self.replays.program.capture(size)

    def take_tiles(self, rows: list[list[bool | str | int]]) -> None:
        """Cut products as rank 0 does from now on, in steps that are captured anew."""
        self.device.synchronize()
        self.device.take_tiles(rows)
        self.replays.drop()

    def exchange(self, order: RankBlocks) -> None:
        """Send rank 0 this rank's part of some blocks, or take it from there."""
        part = self.cache.read(order.group, order.blocks)
        if not order.writes:
            self._all_parts(part)
            return
        shape = (len(order.blocks), part.shape[1] * self.group.num_ranks)
        whole = torch.empty(shape, dtype=torch.uint8, device=self.device.torch_device)
        self._write_part(order.group, order.blocks, whole)

    def _take_sampled(self, sampled: Sequence[RankSampled]) -> None:
        for told in sampled:
            step = self._unsampled.popleft()
            faulty = {int(step.places.owners[row]) for row in told.faulty}
            self.states.accept(step.plan, step.places, np.array(told.tokens, np.int64), faulty)

    def _prepare(self, plan: StepPlan) -> PreparedStep | None:
        step = super()._prepare(plan)
        found = 0 if step is None else len(step.plan.req_ids)
        if found != len(plan.req_ids):
            raise RuntimeError(
                f"Of {len(plan.req_ids)} requests that rank 0 computes, this rank knows {found}; "
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
        self, step: PreparedStep, computed: Computed, results: Results
    ) -> tuple[list[int], Ints]:
        if computed.logits is not None and len(step.places.requests):
            self._unsampled.append(step)
            if len(self._whole):
                self._whole_logits(computed.logits)
        return [], np.zeros(0, np.int64)

    def _choose_on_device(
        self, step: PreparedStep, computed: Computed
    ) -> tuple[FirstMax, dict[int, Fault]]:
        """What all know, and what rank 0 chose. A row that had nothing to choose from is one as any
        other here: rank 0 plans its request no more."""
        best = computed.greedy
        if best is None or computed.logits is None:
            return super()._choose_on_device(step, computed)
        best = FirstMax(torch.zeros_like(best.values), best.ids)
        if len(self._whole):
            self._whole_logits(computed.logits)
            ids = best.ids.new_empty(len(self._whole))
            self.group.broadcast(ids)
            best.put(self._whole, FirstMax(torch.zeros_like(ids, dtype=torch.float32), ids))
        return best, {}

    def _fail(self, result: RequestResult, row: int, fault: Fault) -> None:
        """Whether a request can go on is for rank 0 to say."""
