"""How the prompts of a step share it.

The shortest prompt is read first, so that nobody waits for the whole of a longer one. The oldest
one is paid for that: others may take a tenth of what it takes alone, and a fifth of each step in
which it went on. Once that is spent, steps are its own until it has earned the next one. So it
takes at most 1.3 times as long as alone, and others get a sixth of the time at least.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from pagoda.core.admission import Admission, AwaitsEncoding, Refusal, Start
from pagoda.core.batch import RunningBatch
from pagoda.core.limits import SchedulerLimits
from pagoda.core.pace import PromptRoom, StepRoom
from pagoda.core.queue import RequestQueue, RunningQueue
from pagoda.core.request import Request
from pagoda.core.step_time import StepSize, StepTimes, size_of_streams

_FIRST_CREDIT = 0.1
_EARNED = 0.2
# A step that ends a prompt is lengthened so much at most by those that it does not end.
_STRETCH = 1.25
# Of the requests that wait, so many of the oldest are looked at: a few microseconds each.
_LOOKED_AT = 256


class Prompt(NamedTuple):
    """The tokens that a request misses and that could be computed now."""

    req: Request
    start: int
    missing: int

    @property
    def turn(self) -> tuple[int, int, int]:
        """Priorities are absolute; the shortest first, then arrival."""
        priority, arrival = self.req.key
        return priority, self.missing, arrival


class Shares:
    def __init__(
        self, limits: SchedulerLimits, admission: Admission, times: StepTimes, batch: RunningBatch
    ):
        self._batch = batch
        self._limits = limits
        self._admission = admission
        self._times = times
        self._oldest: Prompt | None = None
        """The prompt that is paid, as it was when it became the oldest."""
        self._credit = 0.0
        """What others may still take, as a share of the time that it takes alone."""

    def divide(
        self, room: StepRoom, running: RunningQueue, waiting: RequestQueue, place: int
    ) -> int:
        """Grant prompts what they get of a step that is planned up to a place among the running
        requests: how many of those behind it are prompts."""
        prompts, streams = self._running_parts(running)
        num_streams = max(0, len(running) - place - len(prompts))
        tokens = room.tokens - min(num_streams, room.tokens - 1)
        spare = self._admission.spare_bytes(running.members, self._batch) if len(waiting) else 0
        num_rows = self._limits.max_num_reqs - len(running)
        line = WaitingLine(self._admission, waiting, spare, num_rows)
        ready = [
            Prompt(req, req.num_computed_tokens, missing)
            for req in prompts
            if (missing := self._admission.missing(req, req.num_computed_tokens))
        ]
        of_prompts = PromptRoom(self._limits, self._times, streams, tokens)
        room.granted = self._grant(of_prompts, ready, line)
        room.unencoded = line.unencoded
        return len(prompts)

    def _running_parts(self, running: RunningQueue) -> tuple[list[Request], StepSize]:
        """Prompts among the running requests, and what streams take of a step."""
        if not len(running):
            return [], StepSize()
        members, batch = running.members, self._batch
        behind = [members.requests[place] for place in batch.far_behind(members.rows)]
        streams = size_of_streams(batch.computed[batch.streams(members.rows)])
        return [req for req in behind if req.is_prompt], streams

    def _grant(
        self, room: PromptRoom, running: list[Prompt], line: "WaitingLine"
    ) -> dict[Request, int]:
        """Tokens for each prompt that gets any, of those that run and those that can start."""
        if room.tokens <= 0:
            return {}
        eldest = line.eldest()
        prompts = [*running, *([eldest] if eldest else [])]
        if not prompts:
            return {}
        if not self._limits.enable_chunked_prefill:
            return self._undivided(chain(prompts, line.behind()), room, line)
        oldest = min(prompts, key=lambda prompt: prompt.req.key)
        if self._oldest is None or self._oldest.req is not oldest.req:
            self._oldest, self._credit = oldest, _FIRST_CREDIT
        others = list(islice(line.behind(), _LOOKED_AT))
        in_turn = sorted([*prompts, *others], key=lambda prompt: prompt.turn)
        if self._credit <= 0:
            in_turn.remove(oldest)
            in_turn.insert(0, oldest)
        alone = room.most(oldest.start, oldest.missing)
        seconds_alone = room.cost.seconds(room.size.plus(oldest.start, alone))
        granted = _fill(in_turn, room, line)
        if alone:
            gained = granted.get(oldest.req, 0) / alone * seconds_alone
            whole = room.cost.seconds(StepSize().plus(self._oldest.start, self._oldest.missing))
            self._credit += ((1 + _EARNED) * gained - room.seconds) / whole
        return granted

    def _undivided(
        self, prompts: Iterable[Prompt], room: PromptRoom, line: "WaitingLine"
    ) -> dict[Request, int]:
        """In the order of arrival, each whole; but for those that are larger than any step."""
        granted: dict[Request, int] = {}
        for prompt in prompts:
            known = line.admitted(prompt)
            if known is None:
                continue
            starts_whole = known.missing <= self._limits.max_num_batched_tokens
            if starts_whole and known.missing > room.tokens and not known.req.is_running:
                break
            tokens = room.most(known.start, known.missing)
            room.take(known.start, tokens)
            granted[known.req] = tokens
            if room.tokens <= 0:
                break
        return granted


class WaitingLine:
    """Who of those that wait may start beside whom. The first who can keeps room for himself:
    nobody overtakes him who would take his row or his memory."""

    def __init__(
        self, admission: Admission, waiting: Iterable[Request], spare_bytes: int, num_rows: int
    ):
        self.unencoded: list[tuple[Request, int]] = []
        """Who could start behind so many tokens, had what follows been encoded."""
        self._admission = admission
        self._waiting = iter(waiting)
        self._spare = spare_bytes
        self._num_rows = num_rows
        self._first: Request | None = None
        self._coming: set[bytes] = set()
        """What those who may start would compute, and others of the same prefix wait for."""

    def eldest(self) -> Prompt | None:
        """The first who can start; None where nobody can, or he finds no room."""
        while self._num_rows > 0 and (req := next(self._waiting, None)) is not None:
            if (prompt := self._start(req)) is not None:
                self._first = req
                return prompt
        return None

    def behind(self) -> Iterator[Prompt]:
        """Those behind him, as far as is known without asking."""
        for req in self._waiting:
            cached = req.num_cached_tokens
            yield Prompt(req, cached, req.num_expected_tokens - cached)

    def admitted(self, prompt: Prompt) -> Prompt | None:
        """What a prompt misses if it runs or can start; then its room is taken."""
        if prompt.req.is_running or prompt.req is self._first:
            return prompt
        return self._start(prompt.req) if self._num_rows > 0 else None

    def _start(self, req: Request) -> Prompt | None:
        start = self._admission.consider(req, self._spare)
        if isinstance(start, Start) and start.coming not in self._coming:
            self._num_rows -= 1
            if start.coming is not None:
                self._coming.add(start.coming)
            # One more for the block that its output will grow into.
            self._spare -= start.num_bytes + self._admission.growth(req)
            cached = start.hit.num_tokens
            return Prompt(req, cached, self._admission.missing(req, cached))
        if isinstance(start, AwaitsEncoding):
            self.unencoded.append((req, start.start))
        elif start is Refusal.FULL:
            self._num_rows = 0
        return None


def _fill(in_turn: list[Prompt], room: PromptRoom, line: WaitingLine) -> dict[Request, int]:
    """Give each in turn what it misses while there is room."""
    granted: dict[Request, int] = {}
    most_seconds = math.inf
    for prompt in in_turn:
        if room.tokens <= 0:
            break
        # Asking what is cached takes longer than all else here.
        if not room.most(prompt.start, 1):
            continue
        known = line.admitted(prompt)
        if known is None:
            continue
        tokens = room.most(known.start, known.missing)
        if tokens < known.missing:
            tokens = room.most(known.start, known.missing, most_seconds)
        if not tokens:
            continue
        room.take(known.start, tokens)
        granted[known.req] = tokens
        if tokens == known.missing and room.is_timed:
            most_seconds = _STRETCH * room.seconds
    return granted
