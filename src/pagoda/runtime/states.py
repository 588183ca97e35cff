"""What the runner knows of each request between steps.

A request has a row from its first plan until it is freed. Its token ids are here as soon as they
are sampled, and steps take them from here: the scheduler, which keeps ids as well, hears of them
later, and can make a plan before it does.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import RequestError
from pagoda.core.grammar import Grammars, TokenMatcher
from pagoda.core.messages import AddRequest
from pagoda.core.plan import NO_STATES, StepPlan
from pagoda.runtime.media import RequestMedia, check_media
from pagoda.runtime.params import (
    PARAMS,
    PENALTIES,
    RULES,
    Rules,
    check_token_ids,
    compile_params,
    compile_rules,
)
from pagoda.runtime.penalties import TokenCounts

Ints = npt.NDArray[np.int64]


class Fault(NamedTuple):
    """Why a request cannot go on."""

    message: str
    bad_request: bool = False
    """The request's own fault, not ours."""


_UNKNOWN = Fault("The runner does not know this request; send it again.")


class BlockTable:
    """Blocks of every row in one KV group, in the order of their tokens."""

    def __init__(self, block_size: int, num_rows: int, max_tokens: int):
        self.block_size = block_size
        # Zeros of this size are untouched memory until a row is used.
        self.entries = np.zeros((num_rows, -(-max_tokens // block_size)), np.int32)
        self.used = np.zeros(num_rows, np.int64)

    def append(self, row: int, block_ids: Sequence[int]) -> None:
        start = int(self.used[row])
        stop = start + len(block_ids)
        if stop > self.entries.shape[1]:
            # Lookahead past the context; nothing is ever computed there.
            stop = self.entries.shape[1]
            block_ids = block_ids[: stop - start]
        self.entries[row, start:stop] = block_ids
        self.used[row] = stop

    def append_one(self, rows: Ints, block_ids: npt.NDArray[np.int32]) -> Ints:
        """A block to each of several rows; its columns."""
        used = self.used[rows]
        self.entries[rows, used] = block_ids
        self.used[rows] = used + 1
        return used

    def clear(self, row: int) -> None:
        self.entries[row, : self.used[row]] = 0
        self.used[row] = 0

    def grow(self, num_rows: int) -> None:
        self.entries = _grow(self.entries, num_rows, self.used)
        self.used = _grow(self.used, num_rows)


@dataclass
class Scheduled:
    """The healthy requests of a plan, as arrays with one entry per request."""

    req_ids: list[str]
    rows: Ints
    starts: Ints
    """First position computed."""
    ends: Ints
    """One past the last, drafts counted in."""
    num_drafts: Ints
    samples: npt.NDArray[np.bool_]
    states: npt.NDArray[np.int32]
    """[requests, 2]: the state block that is read, and the one that is written."""

    @property
    def known(self) -> Ints:
        """Tokens whose value is certain at the end of the step's input: without drafts."""
        return self.ends - self.num_drafts

    def select(self, index: Ints) -> "Scheduled":
        return Scheduled(
            req_ids=[self.req_ids[i] for i in index.tolist()],
            rows=self.rows[index],
            starts=self.starts[index],
            ends=self.ends[index],
            num_drafts=self.num_drafts[index],
            samples=self.samples[index],
            states=self.states[index],
        )


@dataclass
class SamplePlaces:
    """Where tokens are sampled: behind the last known token of some of a plan's requests, and
    behind each of their drafts."""

    requests: Ints
    """Indexes into the plan."""
    first: Ints
    """Of each request, its first row among those sampled."""
    owners: Ints
    """Of each row, its request's index into the plan."""
    positions: Ints
    """Of each row, the position of the token that is sampled."""
    hidden_rows: Ints
    """Of each row, the row of the step's tokens in front of it."""
    one_each: bool
    """All of the plan's requests sample one token."""

    @classmethod
    def of(cls, plan: Scheduled, requests: Ints) -> "SamplePlaces":
        counts = plan.num_drafts[requests] + 1
        owners = np.repeat(requests, counts)
        first = np.cumsum(counts) - counts
        # 0 for a request's last known token, then 1 per draft.
        offsets = np.arange(len(owners)) - np.repeat(first, counts)
        query_end = np.cumsum(plan.ends - plan.starts)
        hidden_rows = query_end[owners] - plan.num_drafts[owners] - 1 + offsets
        one_each = len(requests) == len(owners) == len(plan.rows)
        return cls(requests, first, owners, plan.known[owners] + offsets, hidden_rows, one_each)


class RequestStates:
    """Rows of all requests that the scheduler has not freed; preempted ones keep their tokens."""

    def __init__(
        self,
        block_sizes: Sequence[int],
        *,
        has_states: bool = False,
        vocab_size: int,
        max_num_reqs: int,
        max_model_len: int,
        seed: int,
        grammars: Grammars | None = None,
        takes_media: bool = False,
    ):
        self.takes_media = takes_media
        self.has_states = has_states
        """Whether the model has recurrent layers."""
        self.vocab_size = vocab_size
        self.grammars = grammars
        self.seed = seed
        self.max_model_len = max_model_len
        # One more than the context: a full context still samples its last token.
        self.token_ids = np.zeros((max_num_reqs, max_model_len + 1), np.int32)
        self.lengths = np.zeros(max_num_reqs, np.int64)
        self.scored = np.zeros(max_num_reqs, np.int64)
        """Prompt tokens that already have their prompt_logprobs entry."""
        self.departed = np.zeros(max_num_reqs, np.int64)
        """How many requests have left each row."""
        self.params = np.zeros(max_num_reqs, PARAMS)
        self.tables = [BlockTable(size, max_num_reqs, max_model_len) for size in block_sizes]
        self.rules: dict[int, Rules] = {}
        self.counts: dict[int, TokenCounts] = {}
        self.matchers: dict[int, TokenMatcher] = {}
        """Of the rows whose output follows a grammar."""
        self.media: dict[int, RequestMedia] = {}
        """Of the rows whose prompt holds pictures."""
        self.faults: dict[str, Fault] = {}
        """Requests that cannot go on, with the reason; they stay so until freed."""
        self._rows: dict[str, int] = {}
        self._free = list(range(max_num_reqs))[::-1]

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, plan: StepPlan) -> Scheduled:
        """Bring the rows to where the plan has them. Faulty requests are left out."""
        for req_id in plan.freed:
            self.free(req_id)
        for new in plan.rows:
            if new.request is not None:
                self._add(new.request)
            elif new.req_id in self._rows:
                for table in self.tables:
                    table.clear(self._rows[new.req_id])
        scheduled = self._schedule(plan)
        self._truncate(scheduled)
        self._write_drafts(scheduled, plan)
        return scheduled

    def fault(self, req_id: str) -> Fault:
        """Why `apply` left a request out."""
        return self.faults.get(req_id, _UNKNOWN)

    def free(self, req_id: str) -> None:
        """Forget a request; one that never reached the runner is no error."""
        self.faults.pop(req_id, None)
        row = self._rows.pop(req_id, None)
        if row is None:
            return
        self.departed[row] += 1
        for table in self.tables:
            table.clear(row)
        self.rules.pop(row, None)
        self.counts.pop(row, None)
        self.matchers.pop(row, None)
        self.media.pop(row, None)
        self._free.append(row)

    def accept(
        self,
        plan: Scheduled,
        places: SamplePlaces,
        tokens: Ints,
        faulty: Collection[int],
    ) -> Ints:
        """Append sampled tokens; returns how many each request of `places` keeps.

        `tokens[first[i] + j]` was sampled behind draft j - 1: it counts while every draft before
        it equals the token sampled in its place. Requests in `faulty` keep none.
        """
        sampling, first = places.requests, places.first
        accepted = np.ones(len(sampling), np.int64)
        if places.one_each and not faulty:
            self._append(plan.rows, plan.ends, tokens)
            return accepted
        for i in np.flatnonzero(plan.num_drafts[sampling]).tolist():
            owner, start = sampling[i], first[i]
            drafts = self.token_ids[plan.rows[owner], plan.known[owner] : plan.ends[owner]]
            equal = drafts == tokens[start : start + len(drafts)]
            accepted[i] += len(drafts) if equal.all() else int(equal.argmin())
        if faulty:
            accepted[np.isin(sampling, list(faulty))] = 0
        for step in range(int(accepted.max())):
            left = accepted > step
            owners = sampling[left]
            known = plan.known[owners] + step
            self._append(plan.rows[owners], known, tokens[first[left] + step])
        return accepted

    def promise(self, rows: Ints, known: Ints) -> None:
        """A token of each row is being sampled, at position `known`."""
        self.lengths[rows] = known + 1

    def settle(self, rows: Ints, known: Ints, tokens: Ints) -> None:
        """The tokens that were promised; the row may have been promised more since."""
        self.token_ids[rows, known] = tokens
        self._count(rows, tokens)

    def prompt_to_score(self, row: int, start: int, end: int) -> tuple[int, int]:
        """(first, stop) of the prompt tokens to score after computing positions start .. end.

        What was scored before a preemption is not scored again.
        """
        prompt_len = int(self.params["prompt_len"][row])
        scored = int(self.scored[row])
        first = scored if start == 0 else max(scored, start + 1)
        stop = max(first, min(end + 1, prompt_len))
        self.scored[row] = stop
        return first, stop

    def _append(self, rows: Ints, known: Ints, tokens: Ints) -> None:
        """Add one token to each row, at position `known`."""
        self.promise(rows, known)
        self.settle(rows, known, tokens)

    def _count(self, rows: Ints, tokens: Ints) -> None:
        if self.counts:
            for i in np.flatnonzero(self.params["flags"][rows] & PENALTIES).tolist():
                self.counts[int(rows[i])].add((int(tokens[i]),))

    def output_before(self, row: int, position: int) -> npt.NDArray[np.int32]:
        """Generated tokens (and drafts) in front of a position."""
        return self.token_ids[row, self.params["prompt_len"][row] : position]

    def drafts_before(self, row: int, position: int) -> npt.NDArray[np.int32]:
        return self.token_ids[row, self.lengths[row] : position]

    def _add(self, request: AddRequest) -> None:
        self.free(request.req_id)
        try:
            self._check(request)
            rules = compile_rules(request, self.vocab_size)
            matcher = self._matcher(request.grammar)
        except RequestError as error:
            self.faults[request.req_id] = Fault(error.message, bad_request=True)
            return
        if not self._free:
            self._grow()
        row = self._rows[request.req_id] = self._free.pop()
        prompt = request.prompt_token_ids
        self.token_ids[row, : len(prompt)] = prompt
        self.lengths[row] = len(prompt)
        self.scored[row] = 0
        self.params[row] = compile_params(request, self.vocab_size, self.seed)
        if matcher is not None:
            self.matchers[row] = matcher
        if request.media:
            self.media[row] = RequestMedia(request.media, len(prompt))
        if not rules.empty:
            self.rules[row] = rules
            self.params["flags"][row] |= RULES
        if self.params["flags"][row] & PENALTIES:
            repeats = request.sampling.repetition_penalty != 1.0
            self.counts[row] = TokenCounts(self.token_ids[row, : len(prompt) if repeats else 0])

    def _matcher(self, grammar: str | None) -> TokenMatcher | None:
        if grammar is None:
            return None
        if self.grammars is None:
            raise RequestError("This runner takes no grammars.", "structured_outputs")
        return self.grammars.matcher(grammar)

    def _check(self, request: AddRequest) -> None:
        length = len(request.prompt_token_ids)
        if length == 0:
            raise RequestError("The prompt has no tokens; send at least one.")
        if length > self.max_model_len:
            raise RequestError(
                f"The prompt has {length} tokens, but the context is {self.max_model_len}; "
                "shorten the prompt or raise --max-model-len."
            )
        check_token_ids(request.prompt_token_ids, self.vocab_size, "prompt")
        if request.media and not self.takes_media:
            raise RequestError("This model reads text only; leave the images out.", "messages")
        check_media(request.media, length)

    def _schedule(self, plan: StepPlan) -> Scheduled:
        rows = np.array([self._rows.get(req_id, -1) for req_id in plan.req_ids], np.int64)
        if self.faults:
            rows[[req_id in self.faults for req_id in plan.req_ids]] = -1
        for req_id, new_block_ids in plan.new_blocks.items():
            row = self._rows.get(req_id)
            if row is not None and req_id not in self.faults:
                for table, block_ids in zip(self.tables, new_block_ids, strict=False):
                    if block_ids:
                        table.append(row, block_ids)
        scheduled = _arrays(plan, rows)
        good = rows >= 0
        if not good.all():
            scheduled = scheduled.select(np.flatnonzero(good))
        return self._without_misfits(scheduled)

    def _without_misfits(self, plan: Scheduled) -> Scheduled:
        """Leave out requests whose plan does not fit their row."""
        known, rows = plan.known, plan.rows
        fits = (known <= self.lengths[rows]) & (plan.starts < known)
        fits &= plan.ends <= self.max_model_len
        for table in self.tables:
            fits &= table.used[rows] * table.block_size >= plan.ends
        # Sampling inside the prompt would overwrite it.
        fits &= ~plan.samples | (known >= self.params["prompt_len"][rows])
        if fits.all():
            return plan
        for i in np.flatnonzero(~fits).tolist():
            self.faults[plan.req_ids[i]] = Fault(
                f"The plan computes positions {plan.starts[i]} to {plan.ends[i]} with "
                f"{plan.num_drafts[i]} drafts, which does not fit this request's "
                f"{self.lengths[rows[i]]} tokens and blocks; please report this."
            )
        return plan.select(np.flatnonzero(fits))

    def _truncate(self, plan: Scheduled) -> None:
        """Forget tokens past the point where a request samples anew (a rollback)."""
        sampling = np.flatnonzero(plan.samples)
        rows, known = plan.rows[sampling], plan.known[sampling]
        for i in np.flatnonzero(self.lengths[rows] > known).tolist():
            row = int(rows[i])
            if row in self.counts:
                self.counts[row].remove(self.token_ids[row, known[i] : self.lengths[row]].tolist())
        self.lengths[rows] = known

    def _write_drafts(self, scheduled: Scheduled, plan: StepPlan) -> None:
        """Behind the known tokens: the input and the context of a draft are read from its row."""
        if not plan.drafts:
            return
        for i in np.flatnonzero(scheduled.num_drafts).tolist():
            known, end = scheduled.known[i], scheduled.ends[i]
            self.token_ids[scheduled.rows[i], known:end] = plan.drafts[scheduled.req_ids[i]]

    def _grow(self) -> None:
        """Preempted requests keep their rows, so there can be more rows than run at once."""
        old = len(self.lengths)
        num_rows = 2 * old
        self.token_ids = _grow(self.token_ids, num_rows, self.lengths)
        self.lengths = _grow(self.lengths, num_rows)
        self.scored = _grow(self.scored, num_rows)
        self.departed = _grow(self.departed, num_rows)
        self.params = _grow(self.params, num_rows)
        for table in self.tables:
            table.grow(num_rows)
        self._free = list(range(old, num_rows))[::-1]


def _arrays(plan: StepPlan, rows: Ints) -> Scheduled:
    starts = np.array(plan.starts, np.int64) + plan.ahead
    num_drafts = np.zeros(len(rows), np.int64)
    if plan.drafts:
        num_drafts[:] = [len(plan.drafts.get(req_id, ())) for req_id in plan.req_ids]
    samples = np.ones(len(rows), np.bool_)
    if plan.unsampled:
        samples[:] = [req_id not in plan.unsampled for req_id in plan.req_ids]
    return Scheduled(
        req_ids=plan.req_ids,
        rows=rows,
        starts=starts,
        ends=starts + np.array(plan.lens, np.int64),
        num_drafts=num_drafts,
        samples=samples,
        states=np.array(plan.states or [NO_STATES] * len(rows), np.int32).reshape(-1, 2),
    )


def _grow(old: np.ndarray, num_rows: int, used: Ints | None = None) -> np.ndarray:
    """A copy with more rows; of wide arrays only what is used, so the rest stays untouched."""
    new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
    if used is None:
        new[: len(old)] = old
    else:
        for row, count in enumerate(used.tolist()):
            new[row, :count] = old[row, :count]
    return new
