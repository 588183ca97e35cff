"""Steps on a GPU, captured as graphs: of one token of each request, one for each of some numbers of
these; of several tokens where guesses are verified, or prompts computed.

Usual ones are captured before the engine is ready, what steps need one at a time between steps, in
the order in which they needed it, and the rest when nobody waits. One that cannot be captured runs
op by op, and no other does for that.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes, format_seconds
from pagoda.layers.batch import ForwardBatch
from pagoda.planner.captured import CapturedSize, usual_sizes
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.head import OutputHead
from pagoda.runtime.sampling.sampler import FirstMax
from pagoda.runtime.steps.device_inputs import DeviceInputs
from pagoda.runtime.steps.graphs import Graph, GraphMaker
from pagoda.runtime.steps.inputs import StateArrays, StepArrays, first_blocks
from pagoda.runtime.steps.program import Computed, StepLimits

logger = get_logger(__name__)

# While requests run, capturing takes at most this share of the time. What compiles meanwhile does
# not count: steps that run op by op compile it as well.
_SHARE = 0.1
# Of a start: what is then left is captured later.
_FIRST_SECONDS = 30.0


class Outputs(NamedTuple):
    """What the largest step gives; each graph writes its first rows. Were they
    each graph's own, all their logits together would take gigabytes; the copy is a hundredth of a
    step."""

    hidden_states: torch.Tensor
    """A row for each token; the others have one for each that is sampled."""
    logits: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor

    def first_rows(self, tokens: int, samples: int) -> "Outputs":
        sampled = (x[:samples] for x in (self.logits, self.values, self.ids))
        return Outputs(self.hidden_states[:tokens], *sampled)


Compute = Callable[[ForwardBatch, torch.Tensor | None], Outputs]
"""What a step computes, with logits of int64 rows [samples]; None: of all."""


@dataclass
class Budget:
    """Bytes that graphs of several kinds may take together."""

    nbytes: int
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.nbytes


def model_pass(model: Model, head: OutputHead) -> Compute:
    """Forward pass, output head and greedy choice."""

    def compute(batch: ForwardBatch, samples: torch.Tensor | None) -> Outputs:
        hidden_states = model.forward(batch)
        rows = hidden_states if samples is None else hidden_states.index_select(0, samples)
        logits = head.logits(rows)
        best = head.first_max(logits)
        return Outputs(hidden_states, logits, best.values, best.ids)

    return compute


@dataclass(eq=False)
class CapturedSteps:
    """What `compute` does with decode steps, as `StepProgram` has it.

    `free_memory` says what the device has left.
    """

    compute: Compute
    cache: LayerCaches
    block_sizes: Sequence[int]
    sizes: tuple[CapturedSize, ...]
    limits: StepLimits
    has_states: bool
    device: torch.device
    make_graphs: Callable[[], GraphMaker]
    free_memory: Callable[[], int]
    budget: Budget
    has_adapters: bool = False
    what: str = "decode steps"

    def __post_init__(self) -> None:
        if any(size.prompts for size in self.sizes):
            self.what = "steps"
        self._guesses = any(not size.prompts and size.tokens > size.requests for size in self.sizes)
        """Steps may have guesses, be it beside prompts."""
        self._needed: dict[CapturedSize, None] = {}
        """Sizes in the order in which steps needed them."""
        self._graphs: dict[CapturedSize, Graph] = {}
        self._batches: dict[CapturedSize, ForwardBatch] = {}
        """What each graph reads, and what was planned for it."""
        self._maker: GraphMaker | None = None
        self._inputs: DeviceInputs | None = None
        self._outputs: Outputs | None = None
        self._parts: dict[tuple[int, int], Outputs] = {}
        """Their first rows, by how many."""
        self._failed: dict[CapturedSize, str] = {}
        """Sizes that cannot be captured, and why."""
        self._spent = 0
        self._seconds = 0.0
        self._pause_until = 0.0
        self._given_up = False

    def fits(self, num_tokens: int, num_reqs: int, num_samples: int) -> bool:
        """Whether such a step is captured; one that is not and could be is noted as needed."""
        size = self._size_of(num_reqs, num_tokens, num_samples)
        if size is None:
            return False
        if size in self._graphs:
            return True
        self._needed[size] = None
        return False

    def run(
        self,
        arrays: StepArrays,
        samples: Ints,
        fill: Callable[[torch.Tensor], None] | None = None,
    ) -> Computed:
        """Compute a step that `fits`; what it gives lasts until the next one, its tokens longer.

        `fill` puts tokens that the device alone knows yet into int64 token_ids [num_tokens].
        """
        count, num_samples = arrays.num_tokens, len(samples)
        inputs = self._ready_inputs()
        inputs.load(arrays, samples)
        if fill is not None:
            fill(inputs.token_ids_of(count))
        size = self._size_of(arrays.num_reqs, count, num_samples)
        assert size is not None  # it fits
        for plan in self._batches[size].plans.values():
            plan.update()
        self._graphs[size].replay()
        assert self._outputs is not None
        part = self._parts.get((count, num_samples))
        if part is None:
            part = self._outputs.first_rows(count, num_samples)
            self._parts[count, num_samples] = part
        hidden_states, logits, values, ids = part
        if not num_samples:
            return Computed(hidden_states, None)
        return Computed(hidden_states, logits, FirstMax(values, ids.clone()))

    def capture_usual(self) -> None:
        """Before the engine is ready: capture what nearly every server needs, the smallest first,
        for half a minute at most."""
        begun = time.perf_counter()
        for size in self._missing(usual_sizes(self.sizes)):
            if self._given_up or time.perf_counter() - begun > _FIRST_SECONDS:
                break
            self._capture(size)

    def capture_needed(self) -> bool:
        """Between steps: capture the size that was needed first, if that does not hold up the
        steps for too long in all. Whether it did."""
        if self._given_up or time.perf_counter() < self._pause_until:
            return False
        waiting = self._missing(self._needed)
        if not waiting:
            return False
        before = self._seconds
        self._capture(waiting[0])
        self._pause_until = time.perf_counter() + (self._seconds - before) / _SHARE
        return True

    def capture_more(self) -> bool:
        """With no request running: capture one more size. False when all is done."""
        # Large ones first: the memory between their inputs and outputs serves the others, too.
        # Those with prompts last, for they gain least.
        order = [*self._needed, *sorted(self.sizes, key=_by_rows, reverse=True)]
        missing = self._missing(dict.fromkeys(order))
        if missing and not self._given_up:
            self._capture(missing[0])
        return len(missing) > 1 and not self._given_up

    @property
    def captured(self) -> list[CapturedSize]:
        """Sizes that have a graph."""
        return list(self._graphs)

    @property
    def gave_up(self) -> bool:
        """No more are captured: a replay was wrong, or memory for them is used."""
        return self._given_up

    @property
    def failed(self) -> dict[CapturedSize, str]:
        """Sizes that cannot be captured, and why."""
        return dict(self._failed)

    def drop(self) -> None:
        """Forget all graphs and their memory: what they point to is about to move or to go. Steps
        capture again what they need."""
        self._graphs.clear()
        self._batches.clear()
        self._needed.clear()
        self._parts.clear()
        self._failed.clear()
        self._maker = self._inputs = self._outputs = None
        self.budget.spent -= self._spent
        self._spent = 0
        self._given_up = False

    def _missing(self, sizes: Iterable[CapturedSize]) -> list[CapturedSize]:
        """Those that are not captured, and can be as far as is known."""
        return [size for size in sizes if size not in self._graphs and size not in self._failed]

    def _size_of(self, num_reqs: int, num_tokens: int, num_samples: int) -> CapturedSize | None:
        """What such a step is padded to; one without guesses keeps to itself, and so do those with
        prompts, not each token of which is sampled."""
        is_mixed, is_plain = num_samples < num_tokens, num_tokens == num_reqs
        return next(
            (
                size
                for size in self.sizes
                if size.requests >= num_reqs
                and size.tokens >= num_tokens
                and size.samples >= num_samples
                and size.prompts == is_mixed
                and (is_mixed or (size.tokens == size.requests) == is_plain)
            ),
            None,
        )

    def _ready_inputs(self) -> DeviceInputs:
        if self._inputs is None:
            self._inputs = DeviceInputs(
                self.limits, self.block_sizes, self.has_states, self.device, self.has_adapters
            )
        return self._inputs

    def _capture(self, size: CapturedSize) -> None:
        if self.budget.is_spent:
            self._give_up(f"their {format_bytes(self.budget.nbytes)} of memory are used")
        else:
            self.capture(size)

    @torch.inference_mode()
    def capture(self, size: CapturedSize) -> None:
        """Capture one of `sizes` now, whatever it takes."""
        try:
            graph = self._graph_of(size)
        except torch.OutOfMemoryError:
            self._leave(size, "memory is short")
        except RuntimeError as error:
            self._leave(size, f"it cannot be captured ({_first_line(error)})")
        else:
            if graph is None:
                self._graphs.clear()
                self._given_up = True
                logger.error(
                    "%s run op by op: the replay of %s differs from it. This is a fault of "
                    "Pagoda; please report it with the model's name.",
                    self.what.capitalize(), _words(size),
                )  # fmt: skip
                return
            self._graphs[size] = graph
            logger.debug("Captured of %s: %s.", self.what, _words(size))
        if not self._missing(self.sizes):
            self._report(f"{len(self._graphs)} of {len(self.sizes)}" if self._failed else "All")

    def _leave(self, size: CapturedSize, why: str) -> None:
        """This size alone runs op by op from now on."""
        self._failed[size] = why
        logger.warning("%s of %s runs op by op: %s.", _words(size).capitalize(), self.what, why)

    def _graph_of(self, size: CapturedSize) -> Graph | None:
        """None where a replay does not give what the step itself does."""
        batch, expected = self._first_pass(size)
        # Behind the step itself, which compiles, and whose memory is not the graph's.
        begun, before = time.perf_counter(), self.free_memory()
        try:
            graph = self._recorded(size, batch, expected)
            self._batches[size] = batch
            return graph if self._repeats(graph, expected.logits) else None
        finally:
            taken = max(0, before - self.free_memory())
            self._spent += taken
            self.budget.spent += taken
            self._seconds += time.perf_counter() - begun

    def _first_pass(self, size: CapturedSize) -> tuple[ForwardBatch, Outputs]:
        """A step op by op: it compiles what there is to compile, and gives the outputs' shapes."""
        inputs = self._ready_inputs()
        arrays = self._first_tokens(size)
        # Of more requests than tokens, some have none.
        last = np.maximum(arrays.query_start[1:].astype(np.int64) - 1, 0)
        inputs.load(arrays, last if size.prompts else np.arange(size.tokens))
        drafts = self._guesses and (size.prompts or size.tokens > size.requests)
        batch = inputs.batch_of(size, self.limits, self.cache, drafts)
        computed = self.compute(batch, inputs.samples_of(size))
        return batch, Outputs(*(rows.clone() for rows in computed))

    def _recorded(self, size: CapturedSize, batch: ForwardBatch, like: Outputs) -> Graph:
        outputs, samples = self._ready_outputs(like), self._ready_inputs().samples_of(size)
        if self._maker is None:
            self._maker = self.make_graphs()

        def work() -> None:
            for kept, rows in zip(outputs, self.compute(batch, samples), strict=True):
                kept[: len(rows)].copy_(rows)

        return self._maker(work)

    def _repeats(self, graph: Graph, expected: torch.Tensor) -> bool:
        """Whether it gives these logits; not to the bit, for a library may choose another way while
        it is captured."""
        assert self._outputs is not None
        found = self._outputs.logits
        found.fill_(torch.nan)
        graph.replay()
        found = found[: len(expected)]
        # Of a head's tokens some are never guessed: their logits are infinite.
        difference = torch.where(found == expected, 0.0, found - expected).abs().max()
        largest = torch.where(expected.isfinite(), expected, 0.0).abs().max()
        return bool(difference <= 0.02 * largest)

    def _ready_outputs(self, like: Sequence[torch.Tensor]) -> Outputs:
        if self._outputs is None:
            most, sampled = self.limits.max_tokens, self.limits.max_samples
            self._outputs = Outputs(
                *(
                    rows.new_empty((count, *rows.shape[1:]))
                    for rows, count in zip(like, (most, sampled, sampled, sampled), strict=True)
                )
            )
        return self._outputs

    def _first_tokens(self, size: CapturedSize) -> StepArrays:
        """The first tokens of so many requests, all in block 0 (where equal tokens leave equal keys
        and values); no state is stored. Rows of nobody see nothing, so that theirs are others: they
        are left in the block's last place, which nobody reads."""
        reqs, last = size.requests, min(self.block_sizes, default=size.tokens + 1) - 1
        tokens = min(size.tokens, reqs * last)
        starts = tokens * np.arange(reqs + 1) // reqs
        lens = np.diff(starts)
        positions = np.full(size.tokens, last)
        positions[:tokens] = np.arange(tokens) - np.repeat(starts[:-1], lens)
        read, write = np.zeros(reqs, np.int32), np.zeros(size.tokens, np.int32)
        return StepArrays(
            token_ids=np.zeros(size.tokens, np.int64),
            positions=positions,
            query_start=starts.astype(np.int32),
            kv_lens=lens.astype(np.int32),
            max_query_len=int(lens.max()),
            groups=[first_blocks(np.arange(reqs), positions % block) for block in self.block_sizes],
            states=StateArrays(read, write) if self.has_states else None,
        )

    def _give_up(self, why: str) -> None:
        self._given_up = True
        self._report(f"{len(self._graphs)} of {len(self.sizes)}", f"; others stay eager: {why}")

    def _report(self, count: str, more: str = "") -> None:
        logger.info(
            "%s sizes of %s are captured, in %s and %s of the %s planned%s.",
            count, self.what, format_seconds(self._seconds), format_bytes(self._spent),
            format_bytes(self.budget.nbytes), more,
        )  # fmt: skip


def _by_rows(size: CapturedSize) -> tuple[bool, int, int]:
    return not size.prompts, size.tokens, size.requests


def _words(size: CapturedSize) -> str:
    return f"a step of {size.requests} requests and {size.tokens} tokens"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
