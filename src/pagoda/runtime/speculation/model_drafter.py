"""A smaller model that guesses tokens behind those that a step sampled."""

import numpy as np
import torch
from torch.nn.functional import pad

from pagoda.arch.spec import ModelSpec
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import Device, to_tensor
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.sampler import FirstMax, choose
from pagoda.runtime.states import RequestStates
from pagoda.runtime.steps.inputs import GroupArrays, StepArrays, build_batch
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import Computed, StepLimits, StepProgram


class ModelDrafter:
    """Reads each text with a draft model, and has it guess what comes next, token by token.

    Its keys and values lie in the requests' own blocks. It reads a block's tokens in the step that
    fills the block, so that whoever shares the block finds them, and the others when a guess is
    wanted. A guess is drawn with the noise of its position, as the token itself will be.
    """

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        cache: CacheMemory,
        states: RequestStates,
        device: Device,
        limits: StepLimits,
        *,
        eager: bool = False,
    ):
        """The layers of `model`, as `spec` describes it, are the last ones in `cache`. A step of
        it is within `limits`; `eager` runs it op by op."""
        self._model, self._states, self._limits = model, states, limits
        self._vocab_size, self._max_position = spec.vocab_size, spec.max_position
        self._device = device.torch_device
        groups, self._cache = cache.last(len(spec.layers))
        self._tables = [states.tables[group] for group in groups]
        model.reserve(min(limits.max_model_len, spec.max_position))
        self._program: StepProgram | None = None
        if not eager:
            sizes = [table.block_size for table in self._tables]
            self._program = StepProgram.record(model, self._cache, sizes, limits)
        self._block_size = self._tables[0].block_size
        self._rows = np.zeros((2, len(states.lengths)), np.int64)
        """By row: how many tokens were read, and how many the model had computed then."""
        self._guessed: dict[int, list[int]] = {}
        """By row: guesses that were read behind the tokens."""

    def draft(
        self, step: PreparedStep, hidden_states: torch.Tensor, accepted: Ints, num_drafts: int
    ) -> dict[int, list[int]]:
        """As `Drafter.draft`."""
        rows = step.plan.rows
        gained = np.zeros(len(rows), np.int64)
        gained[step.places.requests] = accepted
        ends = step.plan.known + gained
        computed = ends - (gained > 0)
        seen = self._seen(rows, step.plan.starts, ends)
        asked = (gained > 0) & (num_drafts > 0) & self._have_room(rows, ends - 1)
        ends = np.where(asked, ends, np.minimum(ends, computed))
        due = asked | (ends // self._block_size > seen // self._block_size)
        due &= (ends <= self._max_position) & (seen < ends)
        asked &= due
        drafts = self._read_and_guess(rows[due], seen[due], ends[due], asked[due], num_drafts)
        self._rows[:, rows] = np.where(due, ends, seen), computed
        # The last guess was not read.
        self._guessed = {row: tokens[:-1] for row, tokens in drafts.items()}
        return drafts

    def _seen(self, rows: Ints, starts: Ints, ends: Ints) -> Ints:
        """How many of the rows' tokens were read already, now that they have `ends`."""
        missing = len(self._states.lengths) - self._rows.shape[1]
        if missing > 0:
            self._rows = np.pad(self._rows, ((0, 0), (0, missing)))
        seen, computed = self._rows[:, rows]
        # At the beginning of a block all in front of it was read, by whoever filled those blocks:
        # another request may have come into the row, or the same one with other blocks.
        begins = starts % self._block_size == 0
        goes_on = ~begins & (starts == computed)
        found = np.where(begins, starts, np.where(goes_on, seen, np.minimum(seen, starts)))
        for i in np.flatnonzero(goes_on).tolist():
            row = int(rows[i])
            guessed = self._guessed.get(row, [])
            if guessed:
                first = int(seen[i])
                equal = self._states.token_ids[row, first : first + len(guessed)] == guessed
                right = len(guessed) if equal.all() else int(equal.argmin())
                # The last token is read again, for what follows it.
                found[i] = min(first + right, int(ends[i]) - 1)
        return found

    def _have_room(self, rows: Ints, positions: Ints) -> np.ndarray:
        """Whether each row has a block for a token at its position, and the context holds the one
        behind it."""
        inside: np.ndarray = positions + 1 < self._states.token_ids.shape[1]
        for table in self._states.tables:
            inside &= table.have_room(rows, positions + 1)
        return inside

    def _read_and_guess(
        self, rows: Ints, starts: Ints, ends: Ints, asked: np.ndarray, num_drafts: int
    ) -> dict[int, list[int]]:
        """Read tokens at positions `starts` to `ends`; by row that is asked, what comes behind."""
        if not len(rows):
            return {}
        if (ends - starts).sum() > self._limits.max_tokens:
            # The last token of those that are asked is left, for what follows it.
            self._read_in_parts(rows, starts, ends - asked)
            rows, starts, ends, asked = (x[asked] for x in (rows, ends - 1, ends, asked))
        drafts: dict[int, list[int]] = {row: [] for row in rows[asked].tolist()}
        for place in range(max(1, num_drafts)):
            if not len(rows):
                break
            computed = self._compute(rows, starts, ends, np.flatnonzero(asked))
            rows, ends = rows[asked], ends[asked]
            if computed.logits is None or not len(rows):
                break
            guessed = self._choose(computed, rows, ends)
            self._states.token_ids[rows, ends] = guessed
            for row, token in zip(rows.tolist(), guessed.tolist(), strict=True):
                drafts[row].append(token)
            going = self._have_room(rows, ends) & (ends < self._max_position)
            rows, starts, ends = rows[going], ends[going], ends[going] + 1
            asked = np.full(len(rows), place + 1 < num_drafts)
            if not asked.any():
                break
        return {row: tokens for row, tokens in drafts.items() if tokens}

    def _read_in_parts(self, rows: Ints, starts: Ints, ends: Ints) -> None:
        """Each of no more tokens than a step may have."""
        starts = starts.copy()
        while (starts < ends).any():
            left = np.flatnonzero(starts < ends)
            lens = ends[left] - starts[left]
            before = np.cumsum(lens) - lens
            left = left[before < self._limits.max_tokens]
            room = self._limits.max_tokens - before[: len(left)]
            until = np.minimum(ends[left], starts[left] + room)
            self._compute(rows[left], starts[left], until, left[:0])
            starts[left] = until

    def _compute(self, rows: Ints, starts: Ints, ends: Ints, asked: Ints) -> Computed:
        """Hidden states of tokens at positions `starts` to `ends` of each row, and logits behind
        those of the rows `asked`."""
        arrays = self._arrays(rows, starts, ends)
        samples = arrays.query_start[1:][asked].astype(np.int64) - 1
        if self._program is not None:
            computed = self._program.run(arrays, samples)
            return computed if len(asked) else Computed(computed.hidden_states, None)
        hidden_states = self._model.forward(build_batch(arrays, self._cache, self._device))
        if not len(asked):
            return Computed(hidden_states, None)
        chosen = hidden_states[to_tensor(samples, self._device)]
        return Computed(hidden_states, self._model.compute_logits(chosen))

    def _arrays(self, rows: Ints, starts: Ints, ends: Ints) -> StepArrays:
        lens = ends - starts
        query_start = np.zeros(len(lens) + 1, np.int64)
        np.cumsum(lens, out=query_start[1:])
        each = np.repeat(rows, lens)
        positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], lens)
        token_ids = self._states.token_ids[each, positions].astype(np.int64)
        return StepArrays(
            # Prompts may hold ids that stand for nothing.
            token_ids=np.minimum(token_ids, self._vocab_size - 1),
            positions=positions,
            query_start=query_start.astype(np.int32),
            kv_lens=ends.astype(np.int32),
            max_query_len=int(lens.max()),
            groups=[
                GroupArrays(table, rows, table.slots(each, positions)) for table in self._tables
            ],
        )

    def _choose(self, computed: Computed, rows: Ints, positions: Ints) -> Ints:
        """The tokens at `positions` of the rows."""
        logits, greedy = computed.logits, computed.greedy
        assert logits is not None
        missing = self._states.vocab_size - self._vocab_size
        if missing:
            # Tables are padded differently. A negative number of columns is cut off.
            logits, greedy = pad(logits, (0, missing), value=-torch.inf), None
        best: FirstMax = choose(logits, rows, positions, self._states, greedy)[0]
        return best.arrays[1]
