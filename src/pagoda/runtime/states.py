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
from pagoda.core.messages import AddRequest, Alignment
from pagoda.core.plan import StepPlan
from pagoda.runtime.adapters import NO_SLOT, ResidentAdapters
from pagoda.runtime.block_table import BlockTable, Ints, Ints32, grown
from pagoda.runtime.media import MakeMedia, RequestMedia, check_media
from pagoda.runtime.sampling.chain import Chain
from pagoda.runtime.sampling.params import (
    PARAMS,
    Needs,
    Rules,
    check_token_ids,
    compile_params,
    compile_rules,
)
from pagoda.runtime.sampling.penalties import TokenCounts
from pagoda.runtime.sampling.speech import SpeechMask


class Fault(NamedTuple):
    """Why a request cannot go on."""

    message: str
    bad_request: bool = False
    """The request's own fault, not ours."""


_UNKNOWN = Fault("The runner does not know this request; send it again.")


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
    """[requests, 1 + tokens]: the state block that is read, then those that are written behind the
    last tokens, 0 in front where a request has fewer than others."""

    @classmethod
    def of(cls, plan: StepPlan) -> "Scheduled":
        rows = plan.rows
        num_drafts = np.zeros_like(rows)
        if plan.drafts:
            num_drafts[:] = [len(plan.drafts.get(row, ())) for row in rows.tolist()]
        samples = np.ones(len(rows), np.bool_)
        if plan.unsampled:
            samples[np.isin(rows, list(plan.unsampled))] = False
        ends = plan.starts + plan.lens
        return cls(plan.req_ids, rows, plan.starts, ends, num_drafts, samples, state_blocks(plan))

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


def state_blocks(plan: StepPlan) -> npt.NDArray[np.int32]:
    """`Scheduled.states`; zeros for a model without."""
    if not plan.states:
        return np.zeros((len(plan.rows), 2), np.int32)
    if not plan.drafts:
        return np.array(plan.states, np.int32)
    width = max(map(len, plan.states))
    padded = np.zeros((len(plan.states), width), np.int32)
    for row, (read, *written) in zip(padded, plan.states, strict=True):
        row[0] = read
        row[-len(written) :] = written
    return padded


@dataclass
class SamplePlaces:
    """Where tokens are sampled: behind the last known token of some of a plan's requests, and
    behind each of their drafts."""

    requests: Ints
    """Indexes into the plan."""
    first: Ints
    """Each request's first row among those sampled."""
    owners: Ints
    """Each row's request, as an index into the plan."""
    positions: Ints
    """The position of the token that is sampled in each row."""
    hidden_rows: Ints
    """The row among the step's tokens that stands in front of each row's."""
    one_token_each: bool
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
        one_token_each = len(requests) == len(owners) == len(plan.rows)
        return cls(
            requests, first, owners, plan.known[owners] + offsets, hidden_rows, one_token_each
        )


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
        make_media: MakeMedia | None = None,
    ):
        """`make_media` works out where a request's media stand; None: the model takes none."""
        self.heard = 0
        """As in ModelSpec."""
        self.make_media = make_media
        self._resident: ResidentAdapters | None = None
        self.slots: Ints32 | None = None
        """The slot of each row's adapter, -1 for none; None: there is no room for adapters."""
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
        """Matchers of the rows whose output follows a grammar."""
        self.chains: dict[int, Chain] = {}
        """Samplers of the rows that have an order of their own."""
        self.speech: dict[int, SpeechMask] = {}
        """What may stand where in the texts of rows that write down a sound."""
        self.alignments: dict[int, Alignment] = {}
        """How texts are held against their sounds, for the rows where they are."""
        self.media: dict[int, RequestMedia] = {}
        """Media of the rows whose prompt holds pictures."""
        self.faults: dict[int, Fault] = {}
        """Rows whose requests cannot go on, with the reason; they stay so until freed."""
        self._held = np.zeros(max_num_reqs, np.bool_)

    def __len__(self) -> int:
        return int(self._held.sum())

    def take_adapters(self, adapters: ResidentAdapters) -> None:
        """Let requests have one; before the first of them."""
        self._resident = adapters
        self.slots = np.full(len(self.lengths), NO_SLOT, np.int32)

    def update(self, plan: StepPlan) -> None:
        """Let rows come, go and grow as a plan has them."""
        for row in plan.freed:
            self.free(row)
        for new in plan.new_rows:
            if new.request is not None:
                self._add(new.row, new.request)
            else:
                for table in self.tables:
                    table.clear(new.row)
        for table, new_blocks in zip(self.tables, plan.new_blocks, strict=False):
            if len(new_blocks.rows):
                table.append(new_blocks.rows, new_blocks.columns, new_blocks.blocks)

    def schedule(self, plan: StepPlan) -> Scheduled:
        """The healthy requests of a plan that `update` has seen, their rows being where it has
        them."""
        scheduled = self._without_misfits(self._healthy(plan))
        self._truncate(scheduled)
        self._write_drafts(scheduled, plan)
        return scheduled

    def fault(self, row: int) -> Fault:
        """Why `schedule` left a row out."""
        return self.faults.get(row, _UNKNOWN)

    def free(self, row: int) -> None:
        """Forget a request; one that never reached the runner is no error."""
        if row >= len(self._held):
            return
        self.faults.pop(row, None)
        for table in self.tables:
            table.clear(row)
        if not self._held[row]:
            return
        self._held[row] = False
        self.departed[row] += 1
        self.rules.pop(row, None)
        self.counts.pop(row, None)
        self.matchers.pop(row, None)
        self.chains.pop(row, None)
        self.speech.pop(row, None)
        self.alignments.pop(row, None)
        self.media.pop(row, None)

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
        if places.one_token_each and not faulty:
            self._append(plan.rows, plan.ends, tokens)
            return accepted
        for i in np.flatnonzero(plan.num_drafts[sampling]).tolist():
            owner, start = sampling[i], first[i]
            drafts = self.token_ids[plan.rows[owner], plan.known[owner] : plan.ends[owner]]
            equal = drafts == tokens[start : start + len(drafts)]
            accepted[i] += len(drafts) if equal.all() else int(equal.argmin())
        if faulty:
            accepted[np.isin(sampling, list(faulty))] = 0
        some = np.flatnonzero(accepted > 0)
        owners = sampling[some]
        self._append(plan.rows[owners], plan.known[owners], tokens[first[some]])
        for i in np.flatnonzero(accepted > 1).tolist():
            owner, start, count = sampling[i], int(first[i]) + 1, int(accepted[i]) - 1
            row, known = int(plan.rows[owner]), int(plan.known[owner]) + 1
            self._append_several(row, known, tokens[start : start + count])
        return accepted

    def promise(self, rows: Ints, known: Ints) -> None:
        """A token of each row is being sampled, at position `known`."""
        self.lengths[rows] = known + 1

    def store_tokens(self, rows: Ints, known: Ints, tokens: Ints) -> None:
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
        self.store_tokens(rows, known, tokens)

    def _append_several(self, row: int, known: int, tokens: Ints) -> None:
        """Add tokens to a row, from position `known` on."""
        end = known + len(tokens)
        self.token_ids[row, known:end] = tokens
        self.lengths[row] = end
        if row in self.counts:
            self.counts[row].add(tokens.tolist())

    def _count(self, rows: Ints, tokens: Ints) -> None:
        if self.counts:
            for i in np.flatnonzero(self.params["flags"][rows] & Needs.PENALTIES).tolist():
                self.counts[int(rows[i])].add((int(tokens[i]),))

    def output_before(self, row: int, position: int) -> npt.NDArray[np.int32]:
        """Generated tokens (and drafts) in front of a position."""
        return self.token_ids[row, self.params["prompt_len"][row] : position]

    def drafts_before(self, row: int, position: int) -> npt.NDArray[np.int32]:
        return self.token_ids[row, self.lengths[row] : position]

    def _add(self, row: int, request: AddRequest) -> None:
        while row >= len(self.lengths):
            self._grow()
        self.free(row)
        try:
            self._check(request)
            rules = compile_rules(request, self.vocab_size)
            matcher = self._matcher(request.grammar)
            media = self._media(request)
            slot = self._slot(request.adapter)
        except RequestError as error:
            self.faults[row] = Fault(error.message, bad_request=True)
            return
        self._held[row] = True
        if self.slots is not None:
            self.slots[row] = slot
        prompt = request.prompt_token_ids
        self.token_ids[row, : len(prompt)] = prompt
        self.lengths[row] = len(prompt)
        self.scored[row] = 0
        self.params[row] = compile_params(request, self.vocab_size, self.seed)
        if matcher is not None:
            self.matchers[row] = matcher
        if media is not None:
            self.media[row] = media
        if self.params["flags"][row] & Needs.CHAIN:
            self.chains[row] = Chain(request, int(self.params["seed"][row]))
        if request.speech is not None:
            self.speech[row] = SpeechMask(request.speech, self.vocab_size)
        if request.pooling is not None and request.pooling.alignment is not None:
            self.alignments[row] = request.pooling.alignment
        if not rules.empty:
            self.rules[row] = rules
            self.params["flags"][row] |= Needs.RULES
        if self.params["flags"][row] & Needs.PENALTIES:
            repeats = request.sampling.repetition_penalty != 1.0
            self.counts[row] = TokenCounts(self.token_ids[row, : len(prompt) if repeats else 0])

    def _matcher(self, grammar: str | None) -> TokenMatcher | None:
        if grammar is None:
            return None
        if self.grammars is None:
            raise RequestError("This runner takes no grammars.", "structured_outputs")
        return self.grammars.matcher(grammar)

    def _slot(self, adapter: str | None) -> int:
        if self._resident is not None:
            return self._resident.slot_of(adapter)
        if adapter is not None:
            raise RequestError("This runner has no room for adapters.", "model")
        return NO_SLOT

    def _media(self, request: AddRequest) -> RequestMedia | None:
        if self.heard and [(x.start, x.length) for x in request.media] != [(0, self.heard)]:
            raise RequestError(
                "This model writes down what it hears, and the prompt has no sound: send a file to "
                "/v1/audio/transcriptions."
            )
        if not request.media:
            return None
        if self.make_media is None:
            raise RequestError("This model reads text only; leave the images out.", "messages")
        length = len(request.prompt_token_ids)
        check_media(request.media, length)
        return self.make_media(request.media, length)

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
        if not self.heard and request.pooling is not None and request.pooling.task == "align":
            raise RequestError("This model writes down no sounds, so that none can be aligned.")

    def _healthy(self, plan: StepPlan) -> Scheduled:
        rows = plan.rows
        scheduled = Scheduled.of(plan)
        good = rows < len(self._held)
        good[good] = self._held[rows[good]]
        if self.faults:
            good &= ~np.isin(rows, list(self.faults))
        return scheduled if good.all() else scheduled.select(np.flatnonzero(good))

    def _without_misfits(self, plan: Scheduled) -> Scheduled:
        """Leave out requests whose plan does not fit their row."""
        known, rows = plan.known, plan.rows
        fits = (known <= self.lengths[rows]) & (plan.starts < known)
        fits &= plan.ends <= self.max_model_len
        for table in self.tables:
            fits &= table.have_room(rows, plan.ends)
        # Sampling inside the prompt would overwrite it.
        fits &= ~plan.samples | (known >= self.params["prompt_len"][rows])
        if fits.all():
            return plan
        for i in np.flatnonzero(~fits).tolist():
            self.faults[int(rows[i])] = Fault(
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
            self.token_ids[scheduled.rows[i], known:end] = plan.drafts[int(scheduled.rows[i])]

    def _grow(self) -> None:
        """Preempted requests keep their rows, so there can be more rows than run at once."""
        num_rows = 2 * len(self.lengths)
        self.token_ids = grown(self.token_ids, num_rows, self.lengths)
        self.lengths = grown(self.lengths, num_rows)
        self.scored = grown(self.scored, num_rows)
        self.departed = grown(self.departed, num_rows)
        self.params = grown(self.params, num_rows)
        if self.slots is not None:
            self.slots = grown(self.slots, num_rows)
        for table in self.tables:
            table.grow(num_rows)
        self._held = grown(self._held, num_rows)
