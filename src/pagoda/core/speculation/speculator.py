"""Which guesses the next step verifies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pagoda.base.log import get_logger
from pagoda.core.batch import Ints, RunningBatch
from pagoda.core.queue import Members
from pagoda.core.request import Request
from pagoda.core.speculation.chances import Chances, OwnChances, worthwhile
from pagoda.core.speculation.draft_pace import DraftPace
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.proposer import NO_GUESS, Guess, Proposer
from pagoda.core.step_time import StepCost, StepTimes, size_of_streams

log = get_logger(__name__)

# The cost of a step is asked for again after a share of the steps so far, at most so many.
_COST_SHARE, _COST_STEPS = 0.25, 32
# With so many requests that guesses could win less than this share, nobody is asked for any. A few
# always are, for what a step costs may have been learned at a bad moment.
_LEAST_WIN, _ALWAYS = 0.15, 4
# A step is not planned request by request for a smaller gain.
_LEAST_GAIN = 1.04
# Whoever had nothing worth verifying is asked again after a while, which doubles, of so many
# steps for each request that runs, and no more than so many.
_PATIENCE, _LONGEST_PATIENCE = 0.25, 16
# Among many requests a guess is as long as twice a request's share of what a step verifies, or so
# long.
_LEAST_GUESS = 4
# So a good guess is tried though it does not seem to pay: after so many steps, and then after twice
# as many, up to a limit.
_FIRST_TRY, _LATER_TRIES = 4, 64
_TRY_CHANCE, _TRY_TOKENS = 0.8, 3


@dataclass(eq=False)
class _Stream:
    """What is known of a request that generates."""

    chances: OwnChances
    guesses: Sequence[Guess] = ()
    best: Guess = NO_GUESS
    """The one of them that is to give most tokens."""
    guessed_at: int = 0
    """Tokens that were known then."""
    ask_at: int = 0
    """The step from which on it is asked again."""
    patience: int = 0


class _StepWithout(NamedTuple):
    """The next step, if nothing is guessed."""

    num_streams: int
    seconds: float
    row_seconds: float
    """What one more token would take."""


@dataclass(frozen=True)
class SpeculationLimits:
    most: int
    """Tokens that are guessed for a request in one step."""
    least: int = 1
    """Fewer are not verified."""
    most_in_step: int = 1 << 30
    """Tokens that are guessed for all requests of a step."""


@dataclass(eq=False)
class Speculator:
    """Asks for guesses, learns how often they come true, and picks those that make the next step
    give more tokens a second than it does without. None may be worth it.

    A guess that is not verified teaches as much: what came instead is known later.
    """

    proposer: Proposer
    limits: SpeculationLimits
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _step: int = 0
    _try_after: int = _FIRST_TRY
    _next_try: int = 0
    _cost: StepCost | None = None
    _cost_until: int = 0
    _most_reqs: float = 0.0
    _failed: bool = False
    num_drafts: int = 0
    """Tokens that the runner is to guess behind those that the next step samples."""
    _draft_at: int = 0
    _draft_wait: int = 0

    def __post_init__(self) -> None:
        self._pace = DraftPace()
        self._common = Chances(self.proposer.chances)

    def propose(self, members: Members, batch: RunningBatch, times: StepTimes) -> None:
        """Give requests that run what their next plan is to verify."""
        self._step += 1
        if self._step >= self._cost_until:
            self._learn_cost(times)
        pays = self._cost is not None and len(members.requests) <= self._most_reqs
        self.num_drafts = 0
        if not pays or self._failed:
            return
        try:
            asked = self._ask(members)
        except Exception:
            self._failed = True
            log.exception("Nothing is guessed any more, which costs speed only: it failed.")
            return
        drafts = isinstance(self.proposer, DraftedProposer)
        if not asked and not drafts:
            return
        step = self._step_without(batch.computed[batch.streams(members.rows)])
        most = self._choose(asked, step) if asked else 0
        if drafts and step.num_streams:
            self._want_drafts(step, most)

    def learn_drafting(self, num_drafts: int, seconds: float) -> None:
        """So long the runner took to guess so many tokens for each request of a step."""
        self._pace.observe(num_drafts, seconds)

    def take_drafts(self, members: Members, drafts: Mapping[int, list[int]]) -> None:
        """The runner guesses these, by row, behind what is known of requests now."""
        if isinstance(self.proposer, DraftedProposer):
            for req in members.requests:
                if req.is_running and req.row in drafts:
                    self.proposer.take(req, drafts[req.row])

    def forget(self, req: Request) -> None:
        """A request has ended."""
        if self._streams.pop(req.req_id, None) is not None and not self._failed:
            self.proposer.forget(req)

    def _step_without(self, computed: Ints) -> _StepWithout:
        cost, size = self._cost, size_of_streams(computed)
        assert cost is not None
        row_seconds = cost.per_token + cost.per_pair * size.pairs / max(1.0, size.tokens)
        return _StepWithout(len(computed), cost.seconds(size), row_seconds)

    def _choose(self, asked: list[tuple[Request, _Stream, list[float]]], step: _StepWithout) -> int:
        """Have the best of what was guessed verified: how many of one request's, at most."""
        num_streams, seconds, row_seconds = step
        chances = [own for _, _, own in asked]
        counts = worthwhile(chances, num_streams, seconds, row_seconds, self.limits.most_in_step)
        gained = num_streams + sum(
            sum(own[:count]) for own, count in zip(chances, counts, strict=True)
        )
        with_guesses = seconds + row_seconds * sum(counts)
        if gained * seconds >= _LEAST_GAIN * num_streams * with_guesses:
            self._try_after = _FIRST_TRY
        else:
            counts = self._tries(chances)
        for (req, stream, _), count in zip(asked, counts, strict=True):
            if count >= max(1, self.limits.least):
                req.draft_token_ids = stream.best.token_ids[:count]
                req.handle_alone()
                stream.patience = 0
                self._next_try = self._step + self._try_after
            else:
                self._wait(stream, num_streams)
        return max(counts)

    def _want_drafts(self, step: _StepWithout, most_used: int) -> None:
        """The runner guesses as many as are worth their time, at most one more than were of use
        last; and now and then where none was."""
        most = min(self.limits.most, most_used + 1) if most_used else 0
        wanted = self._pace.best(self._common, *step, most)
        if wanted:
            self.num_drafts = wanted
            self._draft_wait, self._draft_at = 0, self._step
        elif self._step >= self._draft_at:
            self.num_drafts = self.limits.most
            self._draft_wait = min(_LATER_TRIES, 2 * self._draft_wait or _FIRST_TRY)
            self._draft_at = self._step + self._draft_wait

    def _learn_cost(self, times: StepTimes) -> None:
        self._cost = cost = times.cost(decodes=True)
        self._cost_until = self._step + 1 + min(_COST_STEPS, int(_COST_SHARE * self._step))
        if cost is not None:
            # All guesses being right, a step without end gives 1 / per_token tokens a second.
            self._most_reqs = max(_ALWAYS, cost.base / max(1e-9, _LEAST_WIN * cost.per_token))

    def _ask(self, members: Members) -> list[tuple[Request, _Stream, list[float]]]:
        """The requests with a guess, and the chances of its tokens."""
        asked = []
        share = 2 * self.limits.most_in_step // max(1, len(members.requests))
        most = min(self.limits.most, max(_LEAST_GUESS, share))
        for req in members.requests:
            stream = self._streams.get(req.req_id)
            if stream is None:
                if not req.generates:
                    continue
                stream = self._streams[req.req_id] = _Stream(OwnChances(self._common))
            if stream.ask_at > self._step or not req.awaits_guesses:
                continue
            self._learn(req, stream)
            stream.guesses = self.proposer.guess(req, most)
            stream.guessed_at = len(req.token_ids)
            chances: list[float] = []
            for guess in stream.guesses:
                before = req.token_ids[-1]
                own = stream.chances.of_all(guess.evidence, before, guess.token_ids)
                if sum(own) > sum(chances):
                    stream.best, chances = guess, own
            if chances:
                asked.append((req, stream, chances))
            else:
                self._wait(stream, len(members.requests))
        return asked

    def _learn(self, req: Request, stream: _Stream) -> None:
        """What has come of the last guesses."""
        came = req.token_ids[stream.guessed_at :]
        for guess in stream.guesses:
            before = req.token_ids[stream.guessed_at - 1]
            for token, guessed, evidence in zip(came, *guess, strict=False):
                stream.chances.observe(evidence, before, token == guessed)
                if token != guessed:
                    break
                before = token

    def _wait(self, stream: _Stream, num_streams: int) -> None:
        longest = min(_LONGEST_PATIENCE, _PATIENCE * num_streams)
        stream.patience = int(min(longest, 2 * stream.patience + 1))
        stream.ask_at = self._step + 1 + stream.patience

    def _tries(self, chances: list[list[float]]) -> list[int]:
        """Now and then a good guess, all the same."""
        counts = [0] * len(chances)
        if self._step >= self._next_try:
            best = max(range(len(chances)), key=lambda i: chances[i][0])
            if chances[best][0] >= _TRY_CHANCE:
                counts[best] = min(self.limits.most_in_step, _TRY_TOKENS, len(chances[best]))
                self._try_after = min(_LATER_TRIES, 2 * self._try_after)
        return counts
