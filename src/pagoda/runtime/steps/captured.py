"""Decode steps on a GPU, captured as graphs: one for each of some numbers of requests, and of
tokens where guesses are verified.

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
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.planner.captured import CapturedSize, usual_sizes
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.device import copy_to, to_tensor
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.sampler import FirstMax
from pagoda.runtime.states import Ints
from pagoda.runtime.steps.graphs import Graph, GraphMaker
from pagoda.runtime.steps.inputs import StateArrays, StepArrays, first_blocks
from pagoda.runtime.steps.program import Computed, Inputs, StepLimits

logger = get_logger(__name__)

# While requests run, capturing takes at most this share of the time. What compiles meanwhile does
# not count: steps that run op by op compile it as well.
_SHARE = 0.1
# Of a start: what is then left is captured later.
_FIRST_SECONDS = 30.0
_ALIGNMENT = 16
_TORCH_TYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


class Outputs(NamedTuple):
    """What the largest step gives; each graph writes its first rows. Were they
    each graph's own, all their logits together would take gigabytes; the copy is a hundredth of a
    step."""

    hidden_states: torch.Tensor
    logits: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor


class _Arena:
    """Small host arrays side by side, and their copies on the device, moved all at once."""

    def __init__(self, nbytes: int, device: torch.device):
        self._host = np.zeros(nbytes, np.uint8)
        self._whole = torch.from_numpy(self._host)
        self._device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._used = 0

    def zeros(self, shape: int | tuple[int, ...], dtype: type) -> np.ndarray:
        """As np.zeros."""
        count, kind = int(np.prod(shape)), np.dtype(dtype)
        start, nbytes = self._used, count * kind.itemsize
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._host[start : start + nbytes].view(kind).reshape(shape)

    def on_device(self, array: np.ndarray) -> torch.Tensor:
        """The copy of an array of `zeros`."""
        start = array.ctypes.data - self._host.ctypes.data
        part = self._device[start : start + array.nbytes]
        return part.view(_TORCH_TYPES[array.dtype]).view(array.shape)

    def upload(self) -> None:
        copy_to(self._device, self._whole)


class _DeviceInputs(Inputs):
    """The memory on the device from which graphs read, and its picture on the host.

    Steps are padded to a captured size by requests without tokens. The rows that these seem to
    have read token 0 at position 0, and store K and V in block 0, which belongs to nobody.
    """

    def __init__(
        self, limits: StepLimits, block_sizes: Sequence[int], has_states: bool, device: torch.device
    ):
        rows = max(limits.max_tokens, limits.max_reqs) + 1
        # Each array has at most so many rows of 8 bytes; their alignment is the rest.
        arrays = 6 + 3 * len(block_sizes) + 2
        self._arena = _Arena(arrays * (8 * rows + _ALIGNMENT), device)
        super().__init__(limits, block_sizes, has_states, self._arena.zeros)
        self._device = device
        self._tables = [
            torch.zeros(group.block_table.shape, dtype=torch.int32, device=device)
            for group in self.groups
        ]
        zeros, on_device = self._arena.zeros, self._arena.on_device
        self._entries = [
            (zeros(limits.max_reqs, np.int64), zeros(limits.max_reqs, np.int32))
            for _ in self.groups
        ]
        """What is new in each table: where it lies, and the blocks."""
        self._device_entries = [
            (on_device(places), on_device(blocks)) for places, blocks in self._entries
        ]
        self._grown: dict[int, int] = {}
        """The groups that have new entries, and how many."""
        self._flat_tables = [table.view(-1) for table in self._tables]
        self._num_reqs = self._num_tokens = 0
        """Those of the last step."""
        self._device_token_ids = on_device(self.token_ids)

    def load(self, arrays: StepArrays, samples: Ints) -> None:
        self._clear_behind(arrays)
        super().load(arrays, samples)
        self._arena.upload()
        for group, count in self._grown.items():
            places, blocks = self._device_entries[group]
            self._flat_tables[group].index_copy_(0, places[:count], blocks[:count])
        self._grown.clear()

    def _clear_behind(self, arrays: StepArrays) -> None:
        reqs = slice(arrays.num_reqs, self._num_reqs)
        tokens = slice(arrays.num_tokens, self._num_tokens)
        self._num_reqs, self._num_tokens = reqs.start, tokens.start
        if tokens.start >= tokens.stop and reqs.start >= reqs.stop:
            return
        self.kv_lens[reqs] = 0
        for array in (self.token_ids, self.positions):
            array[tokens] = 0
        for group in self.groups:
            group.slot_mapping[tokens] = 0
        if self.states is not None:
            self.states.read[reqs] = 0
            self.states.write[tokens] = 0

    def take_table(self, group: int, table: np.ndarray) -> None:
        rows, width = table.shape
        self._tables[group][:rows, :width] = to_tensor(table, self._device)

    def take_blocks(self, group: int, rows: Ints, columns: Ints, blocks: Ints) -> None:
        count, (places, entries) = len(rows), self._entries[group]
        places[:count] = rows * self._tables[group].shape[1] + columns
        entries[:count] = blocks
        self._grown[group] = count

    def token_ids_of(self, count: int) -> torch.Tensor:
        return self._device_token_ids[:count]

    def batch_of(self, size: CapturedSize, limits: StepLimits, cache: LayerCaches) -> ForwardBatch:
        """A step of `size`; no copies."""
        on_device, (reqs, tokens) = self._arena.on_device, size
        groups: list[GroupInputs | StateInputs] = [
            GroupInputs(table[:reqs], on_device(group.slot_mapping)[:tokens])
            for table, group in zip(self._tables, self.groups, strict=True)
        ]
        if self.states is not None:
            read, write = on_device(self.states.read), on_device(self.states.write)
            groups.append(StateInputs(read[:reqs], write[:tokens], drafts=tokens > reqs))
        return ForwardBatch(
            token_ids=self.token_ids_of(tokens),
            positions=on_device(self.positions)[:tokens],
            query_start=on_device(self.query_start)[: reqs + 1],
            kv_lens=on_device(self.kv_lens)[:reqs],
            max_query_len=1 + tokens - reqs,
            max_kv_len=limits.max_model_len,
            groups=groups,
            layer_group=cache.layer_group,
            kv_caches=cache.layers,
            host_query_start=self.query_start[: reqs + 1],
            host_kv_lens=self.kv_lens[:reqs],
            fixed=True,
        )


@dataclass
class Budget:
    """Bytes that graphs of several kinds may take together."""

    nbytes: int
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.nbytes


def model_pass(model: Model) -> Callable[[ForwardBatch], Outputs]:
    """Forward pass, output head and greedy choice."""

    def compute(batch: ForwardBatch) -> Outputs:
        hidden_states = model.forward(batch)
        logits = model.compute_logits(hidden_states)
        return Outputs(hidden_states, logits, *ops.first_max(logits))

    return compute


@dataclass(eq=False)
class CapturedSteps:
    """What `compute` does with decode steps, as `StepProgram` has it.

    `free_memory` says what the device has left.
    """

    compute: Callable[[ForwardBatch], Outputs]
    cache: LayerCaches
    block_sizes: Sequence[int]
    sizes: tuple[CapturedSize, ...]
    limits: StepLimits
    has_states: bool
    device: torch.device
    make_graphs: Callable[[], GraphMaker]
    free_memory: Callable[[], int]
    budget: Budget
    what: str = "decode steps"

    def __post_init__(self) -> None:
        self._needed: dict[CapturedSize, None] = {}
        """Sizes in the order in which steps needed them."""
        self._graphs: dict[CapturedSize, Graph] = {}
        self._batches: dict[CapturedSize, ForwardBatch] = {}
        """What each graph reads, and what was planned for it."""
        self._maker: GraphMaker | None = None
        self._inputs: _DeviceInputs | None = None
        self._outputs: Outputs | None = None
        self._parts: dict[int, Outputs] = {}
        """Their first rows, by how many."""
        self._failed: dict[CapturedSize, str] = {}
        """Sizes that cannot be captured, and why."""
        self._spent = 0
        self._seconds = 0.0
        self._pause_until = 0.0
        self._given_up = False

    def fits(self, num_tokens: int, num_reqs: int, num_samples: int) -> bool:
        """Whether such a step is captured; a decode step that is not is noted as needed."""
        size = self._size_of(num_reqs, num_tokens) if num_tokens == num_samples else None
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
        count = arrays.num_tokens
        inputs = self._ready_inputs()
        inputs.load(arrays, samples)
        if fill is not None:
            fill(inputs.token_ids_of(count))
        size = self._size_of(arrays.num_reqs, count)
        assert size is not None  # it fits
        for plan in self._batches[size].plans.values():
            plan.update()
        self._graphs[size].replay()
        assert self._outputs is not None
        part = self._parts.get(count)
        if part is None:
            part = self._parts[count] = Outputs(*(rows[:count] for rows in self._outputs))
        hidden_states, logits, values, ids = part
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

    def _size_of(self, num_reqs: int, num_tokens: int) -> CapturedSize | None:
        """What such a step is padded to; one without guesses keeps to itself."""
        return next(
            (
                size
                for size in self.sizes
                if size.requests >= num_reqs
                and size.tokens >= num_tokens
                and (size.tokens == size.requests) == (num_tokens == num_reqs)
            ),
            None,
        )

    def _ready_inputs(self) -> _DeviceInputs:
        if self._inputs is None:
            self._inputs = _DeviceInputs(
                self.limits, self.block_sizes, self.has_states, self.device
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
                    "%s run op by op: the replay of a captured one differs from it. This is "
                    "a fault of Pagoda; please report it with the model's name.",
                    self.what.capitalize(),
                )
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
        inputs.load(self._first_tokens(size), np.arange(size.tokens))
        batch = inputs.batch_of(size, self.limits, self.cache)
        return batch, Outputs(*(rows.clone() for rows in self.compute(batch)))

    def _recorded(self, size: CapturedSize, batch: ForwardBatch, like: Outputs) -> Graph:
        outputs = self._ready_outputs(like)
        if self._maker is None:
            self._maker = self.make_graphs()

        def work() -> None:
            for kept, rows in zip(outputs, self.compute(batch), strict=True):
                kept[: size.tokens].copy_(rows)

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
            most = self.limits.max_tokens
            self._outputs = Outputs(*(rows.new_empty((most, *rows.shape[1:])) for rows in like))
        return self._outputs

    def _first_tokens(self, size: CapturedSize) -> StepArrays:
        """The first tokens of so many requests, all in block 0 (where equal tokens leave equal keys
        and values); no state is stored."""
        reqs = size.requests
        tokens = min([size.tokens, *(reqs * block for block in self.block_sizes)])
        starts = tokens * np.arange(reqs + 1) // reqs
        lens = np.diff(starts)
        positions = np.arange(tokens) - np.repeat(starts[:-1], lens)
        read, write = np.zeros(reqs, np.int32), np.zeros(tokens, np.int32)
        return StepArrays(
            token_ids=np.zeros(tokens, np.int64),
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


def _by_rows(size: CapturedSize) -> tuple[int, int]:
    return size.tokens, size.requests


def _words(size: CapturedSize) -> str:
    return f"a step of {size.requests} requests and {size.tokens} tokens"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
