"""The whole step as one call: recorded once over fixed memory, replayed with new inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch

from pagoda.base.log import get_logger
from pagoda.kernels import ops
from pagoda.kernels.workspace import all_rows
from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.layers.watched import Watched
from pagoda.runtime.adapters import NO_SLOT
from pagoda.runtime.block_table import Ints, Ints32
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.sampler import FirstMax
from pagoda.runtime.steps.inputs import GroupArrays, StateArrays, StepArrays, first_blocks

if TYPE_CHECKING:
    from pagoda.kernels.cpu.recording import Recording

logger = get_logger(__name__)

# What a program counts rows by.
_TOKENS, _SAMPLES = 0, 1


@dataclass(frozen=True)
class StepLimits:
    """The largest step that a program is made for."""

    max_tokens: int
    max_reqs: int
    max_samples: int
    """Rows of logits."""
    max_model_len: int


@dataclass
class Computed:
    """What a step computed; valid until the next one."""

    hidden_states: torch.Tensor
    """[num_tokens, hidden]."""
    logits: torch.Tensor | None
    """fp32 [num_samples, vocab]; None without samples."""
    greedy: FirstMax | None = None
    """The largest of the logits, where it is known."""
    watched: Watched | None = None
    """Attention that the step's requests wanted to see."""


class _Group(NamedTuple):
    block_table: Ints32
    slot_mapping: Ints


class _Loaded:
    """Which requests' block table of a group lies in the inputs, and as of when."""

    def __init__(self, group: GroupArrays):
        self._table, self._rows, self._changes = group.table, group.rows, group.table.changes
        self._places: Ints | None = None

    def take(self, inputs: "Inputs", index: int, group: GroupArrays) -> bool:
        """Bring it to where the group's is; False where that takes the whole table."""
        table = group.table
        if table is not self._table or group.rows is not self._rows:
            return False
        missing, self._changes = table.changes - self._changes, table.changes
        if not missing:
            return True
        if missing > 1 or table.last_change is None:
            return False
        rows, columns, blocks = table.last_change
        places = self._places_of(rows)
        mine = places >= 0
        if mine.sum() > len(self._rows):
            return False
        inputs.take_blocks(index, places[mine], columns[mine], blocks[mine])
        return True

    def _places_of(self, rows: Ints) -> Ints:
        """Among the requests; -1 for those of others."""
        if self._places is None:
            self._places = np.full(len(self._table.used), -1)
            self._places[self._rows] = np.arange(len(self._rows))
        return self._places[rows]


class Inputs:
    """The memory from which every replay reads its inputs."""

    def __init__(
        self,
        limits: StepLimits,
        block_sizes: Sequence[int],
        has_states: bool,
        zeros: Callable[..., np.ndarray] = np.zeros,
        has_adapters: bool = False,
    ):
        """`zeros`: where all arrays but the block tables come from."""
        self.token_ids = zeros(limits.max_tokens, np.int64)
        self.positions = zeros(limits.max_tokens, np.int64)
        self.query_start = zeros(limits.max_reqs + 1, np.int32)
        self.kv_lens = zeros(limits.max_reqs, np.int32)
        self.samples = zeros(limits.max_samples, np.int64)
        self.groups = [
            _Group(
                np.zeros((limits.max_reqs, -(-limits.max_model_len // size)), np.int32),
                zeros(limits.max_tokens, np.int64),
            )
            for size in block_sizes
        ]
        self.states: StateArrays | None = None
        if has_states:
            self.states = StateArrays(
                zeros(limits.max_reqs, np.int32), zeros(limits.max_tokens, np.int32)
            )
        self.adapters: Ints32 | None = None
        if has_adapters:
            self.adapters = zeros(limits.max_tokens, np.int32)
            self.adapters[:] = NO_SLOT
        self._loaded: list[_Loaded | None] = [None] * len(self.groups)
        """Which block table of each group lies here."""
        self._query_start: Ints32 | None = None
        self._samples: Ints | None = None
        """The arrays that were copied last; steps in a row share them."""

    def load(self, arrays: StepArrays, samples: Ints) -> None:
        self._load_tables(arrays)
        num_tokens, num_reqs = arrays.num_tokens, arrays.num_reqs
        self.token_ids[:num_tokens] = arrays.token_ids
        self.positions[:num_tokens] = arrays.positions
        if arrays.query_start is not self._query_start:
            self.query_start[: num_reqs + 1] = arrays.query_start
            # Whoever starts behind the last token is not there.
            self.query_start[num_reqs + 1 :] = num_tokens
            self._query_start = arrays.query_start
        self.kv_lens[:num_reqs] = arrays.kv_lens
        if samples is not self._samples:
            self.samples[: len(samples)] = samples
            self._samples = samples
        for theirs, mine in zip(arrays.groups, self.groups, strict=True):
            mine.slot_mapping[:num_tokens] = theirs.slot_mapping
        if self.states is not None and arrays.states is not None:
            self.states.read[:num_reqs] = arrays.states.read
            self.states.write[:num_tokens] = arrays.states.write
        if self.adapters is not None:
            self.adapters[:num_tokens] = NO_SLOT if arrays.adapters is None else arrays.adapters

    def take_table(self, group: int, table: np.ndarray) -> None:
        """A group's block table is another."""
        self.groups[group].block_table[: len(table), : table.shape[1]] = table

    def take_blocks(self, group: int, rows: Ints, columns: Ints, blocks: Ints) -> None:
        """A group's block table has new entries."""
        self.groups[group].block_table[rows, columns] = blocks

    def _load_tables(self, arrays: StepArrays) -> None:
        """A table that lies here for the same requests changes by what is new in it."""
        for index, group in enumerate(arrays.groups):
            loaded = self._loaded[index]
            if loaded is None or not loaded.take(self, index, group):
                self.take_table(index, group.table.of_rows(group.rows))
                self._loaded[index] = _Loaded(group)

    def batch(self, num_tokens: int, limits: StepLimits, cache: LayerCaches) -> ForwardBatch:
        """Per request everything, per token the first `num_tokens`; no copies."""
        groups: list[GroupInputs | StateInputs] = [
            GroupInputs(
                torch.from_numpy(group.block_table),
                torch.from_numpy(group.slot_mapping[:num_tokens]),
            )
            for group in self.groups
        ]
        if self.states is not None:
            read, write = self.states.read, self.states.write[:num_tokens]
            groups.append(StateInputs(torch.from_numpy(read), torch.from_numpy(write)))
        return ForwardBatch(
            token_ids=torch.from_numpy(self.token_ids[:num_tokens]),
            positions=torch.from_numpy(self.positions[:num_tokens]),
            query_start=torch.from_numpy(self.query_start),
            kv_lens=torch.from_numpy(self.kv_lens),
            max_query_len=limits.max_tokens,
            max_kv_len=limits.max_model_len,
            groups=groups,
            layer_group=cache.layer_group,
            kv_caches=cache.layers,
            adapters=None
            if self.adapters is None
            else torch.from_numpy(self.adapters[:num_tokens]),
        )


class StepProgram:
    """Forward pass, output head and greedy choice of any step within its limits."""

    def __init__(self, recording: "Recording", limits: StepLimits, inputs: Inputs):
        self._recording = recording
        self._limits = limits
        self._inputs = inputs
        self._outputs: Computed
        self._parts: dict[tuple[int, int], Computed] = {}

    @classmethod
    def record(
        cls,
        model: Model,
        cache: LayerCaches,
        block_sizes: Sequence[int],
        limits: StepLimits,
        has_states: bool = False,
        has_adapters: bool = False,
    ) -> Self | None:
        """The program of a model, checked against the pass that it was recorded from; None, with
        the reason in the log, where a model's steps cannot be replayed.

        Writes keys and values of a few meaningless tokens to block 0.
        """
        device = str(cache.layers[0][0].device) if cache.layers else ""
        recording = ops.recording(device, (limits.max_tokens, limits.max_samples))
        if recording is None:
            return None
        program = cls(
            recording, limits, Inputs(limits, block_sizes, has_states, has_adapters=has_adapters)
        )
        num_tokens = min(limits.max_tokens, limits.max_model_len, *block_sizes, 3)
        arrays = _meaningless(num_tokens, len(block_sizes), has_states)
        program._trace(model, arrays, cache)
        if recording.foreign:
            names = ", ".join(sorted(recording.foreign))
            logger.info("Steps run op by op: %s cannot be replayed.", names)
            return None
        if not program._repeats(arrays):
            logger.error(
                "Steps run op by op: the replay of a step differs from its recording. "
                "This is a fault of Pagoda; please report it with the model's name."
            )
            return None
        return program

    def fits(self, num_tokens: int, num_reqs: int, num_samples: int) -> bool:
        limits = self._limits
        return (
            num_tokens <= limits.max_tokens
            and num_reqs <= limits.max_reqs
            and num_samples <= limits.max_samples
        )

    def run(self, arrays: StepArrays, samples: Ints) -> Computed:
        """Compute a step; logits are those of the hidden states' rows `samples`."""
        self._inputs.load(arrays, samples)
        self._rows = (arrays.num_tokens, len(samples))
        self._recording.replay(self._rows)
        return self._computed(*self._rows)

    def profile(self) -> list[tuple[str, float]]:
        """Compute the last step once more: each op's name and seconds, in order."""
        return self._recording.profile(self._rows)

    def _trace(self, model: Model, arrays: StepArrays, cache: LayerCaches) -> None:
        limits, recording, inputs = self._limits, self._recording, self._inputs
        inputs.load(arrays, np.array([arrays.num_tokens - 1]))
        batch = inputs.batch(arrays.num_tokens, limits, cache)
        samples = torch.from_numpy(inputs.samples)
        with recording.rows(_TOKENS, arrays.num_tokens):
            hidden_states = model.forward(batch)
        with recording.rows(_SAMPLES, 1):
            logits = model.compute_logits(ops.take_rows(hidden_states, samples[:1]))
            values, ids = ops.first_max(logits)
        if recording.foreign:
            return
        self._outputs = Computed(
            all_rows(hidden_states, limits.max_tokens),
            all_rows(logits, limits.max_samples),
            FirstMax(all_rows(values, limits.max_samples), all_rows(ids, limits.max_samples)),
        )

    def _computed(self, num_tokens: int, num_samples: int) -> Computed:
        """The outputs' rows. Slicing takes 30 us, and decode steps come in a few sizes."""
        part = self._parts.get((num_tokens, num_samples))
        if part is None:
            whole = self._outputs
            assert whole.logits is not None and whole.greedy is not None
            values, ids = whole.greedy.values, whole.greedy.ids
            part = Computed(
                whole.hidden_states[:num_tokens],
                whole.logits[:num_samples],
                FirstMax(values[:num_samples], ids[:num_samples]),
            )
            if num_tokens == num_samples:
                self._parts[num_tokens, num_samples] = part
        return part

    def _repeats(self, arrays: StepArrays) -> bool:
        """Whether a replay gives the recorded step's bits, all else in its memory being NaN."""
        samples = np.array([arrays.num_tokens - 1])
        expected = [x.clone() for x in _results(self._computed(arrays.num_tokens, 1))]
        self._recording.workspace.poison()
        found = _results(self.run(arrays, samples))
        return all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))


def _results(computed: Computed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert computed.logits is not None and computed.greedy is not None
    return computed.hidden_states, computed.logits, computed.greedy.ids


def _meaningless(num_tokens: int, num_groups: int, has_states: bool) -> StepArrays:
    """One request's first tokens, in block 0 of every attention group; no state is stored."""
    ids, nowhere = np.arange(num_tokens), np.zeros(num_tokens, np.int32)
    return StepArrays(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=ids,
        query_start=np.array([0, num_tokens], np.int32),
        kv_lens=np.array([num_tokens], np.int32),
        max_query_len=num_tokens,
        groups=[first_blocks(np.zeros(1, np.int64), ids) for _ in range(num_groups)],
        states=StateArrays(nowhere[:1], nowhere) if has_states else None,
    )
