"""What guesses tokens on the device, behind those that a step sampled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.models.base import DraftHead
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import to_tensor
from pagoda.runtime.sampling.sampler import choose
from pagoda.runtime.states import RequestStates, Scheduled
from pagoda.runtime.steps.captured import CapturedSteps, Outputs
from pagoda.runtime.steps.inputs import StepArrays, build_batch, step_arrays
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import Computed


class Drafter(Protocol):
    """Guesses tokens behind those that a step sampled."""

    def draft(
        self, step: PreparedStep, hidden_states: torch.Tensor, accepted: Ints, num_drafts: int
    ) -> dict[int, list[int]]:
        """By row, up to `num_drafts` tokens behind those that the step's requests gained.

        `hidden_states` [tokens, hidden] are the step's; `accepted` says how many tokens each of
        `step.places.requests` gained, which lie in the states already.
        """


class HeadDrafter:
    """Runs a head over each step's tokens, so that it has seen all of a text, and then over its own
    guesses, one after the other.

    A guess is drawn as the token itself will be, with the noise of its position: so both are often
    the same at any temperature.
    """

    def __init__(
        self, head: DraftHead, cache: CacheMemory, states: RequestStates, device: torch.device
    ):
        self._head, self._cache, self._states, self._device = head, cache, states, device
        self._captured: CapturedSteps | None = None
        self._read = torch.empty(0)
        """The hidden states that a captured pass reads, [tokens, hidden]."""

    def capture(self, make: Callable[..., CapturedSteps], most_tokens: int) -> CapturedSteps:
        """Have passes of up to `most_tokens` captured: what `make` makes of one, and of its name.
        Who calls says when each size is."""

        def compute(batch: ForwardBatch, samples: torch.Tensor | None) -> Outputs:
            read = self._read[: batch.num_tokens]
            hidden_states = self._head.forward(batch, batch.token_ids, read)
            logits = self._head.compute_logits(hidden_states)
            return Outputs(hidden_states, logits, *ops.first_max(logits))

        shape = most_tokens, self._head.hidden_size
        self._read = torch.zeros(shape, dtype=self._head.dtype, device=self._device)
        self._captured = make(compute, what="a draft head's passes")
        return self._captured

    def draft(
        self, step: PreparedStep, hidden_states: torch.Tensor, accepted: Ints, num_drafts: int
    ) -> dict[int, list[int]]:
        """As `Drafter.draft`. A prompt is read along."""
        plan, places = step.plan, step.places
        reads_prompt = step.arrays.num_tokens > len(accepted)
        if not (num_drafts or reads_prompt):
            return {}
        lens = plan.ends - plan.starts
        positions = np.arange(step.arrays.num_tokens) + np.repeat(
            plan.starts - (np.cumsum(lens) - lens), lens
        )
        following = self._states.token_ids[np.repeat(plan.rows, lens), positions + 1]
        seen = self._run(step.arrays, following, self._head.read(hidden_states))
        going = np.flatnonzero(accepted > 0)
        last = places.first[going] + accepted[going] - 1
        rows = plan.rows[places.requests[going]]
        ends = places.positions[last] + 1
        chosen = to_tensor(places.hidden_rows[last], self._device)
        logits = None if seen.logits is None else seen.logits[chosen]
        return self._guess(rows, ends, Computed(seen.hidden_states[chosen], logits), num_drafts)

    def _guess(
        self, rows: Ints, ends: Ints, seen: Computed, num_drafts: int
    ) -> dict[int, list[int]]:
        """Tokens at positions `ends` and behind, by what the head made of those in front."""
        drafts: dict[int, list[int]] = {row: [] for row in rows.tolist()}
        token_ids = self._states.token_ids
        for place in range(num_drafts):
            hidden_states = seen.hidden_states
            if place:
                rows, ends, hidden_states = self._with_room(rows, ends, hidden_states, place)
            if not len(rows):
                break
            if place:
                before = ends + place - 2
                following = token_ids[rows, before + 1]
                seen = self._run(self._one_each(rows, before), following, hidden_states)
            logits = seen.logits
            if logits is None:
                logits = self._head.compute_logits(seen.hidden_states)
            best, _ = choose(logits, rows, ends + place, self._states)
            guessed = best.arrays[1]
            token_ids[rows, ends + place] = guessed
            for row, token in zip(rows.tolist(), guessed.tolist(), strict=True):
                drafts[row].append(token)
        return drafts

    def _with_room(
        self, rows: Ints, ends: Ints, hidden_states: torch.Tensor, place: int
    ) -> tuple[Ints, Ints, torch.Tensor]:
        """Those whose blocks and context hold one more token."""
        inside = ends + place < self._states.token_ids.shape[1]
        for table in self._states.tables:
            inside &= table.have_room(rows, ends + place - 1)
        if inside.all():
            return rows, ends, hidden_states
        kept = np.flatnonzero(inside)
        return rows[kept], ends[kept], hidden_states[to_tensor(kept, self._device)]

    def _one_each(self, rows: Ints, positions: Ints) -> StepArrays:
        """A step of one token of each row."""
        nothing = np.zeros(len(rows), np.int64)
        plan = Scheduled(
            req_ids=[],
            rows=rows,
            starts=positions,
            ends=positions + 1,
            num_drafts=nothing,
            samples=nothing.astype(np.bool_),
            states=np.zeros((len(rows), 2), np.int32),
        )
        return step_arrays(plan, self._states)

    def _run(
        self, arrays: StepArrays, following: np.ndarray, hidden_states: torch.Tensor
    ) -> Computed:
        """What the head makes of a step's tokens; logits only where they cost nothing more."""
        captured, count = self._captured, arrays.num_tokens
        is_plain = arrays.positions.ndim == 1 and not arrays.media
        if captured is not None and is_plain and captured.fits(count, arrays.num_reqs, count):
            arrays = replace(arrays, token_ids=following)

            def fill(token_ids: torch.Tensor) -> None:
                self._read[:count].copy_(hidden_states)

            return captured.run(arrays, np.arange(count), fill)
        batch = build_batch(arrays, self._cache, self._device)
        token_ids = to_tensor(following.astype(np.int64), self._device)
        return Computed(self._head.forward(batch, token_ids, hidden_states), None)
