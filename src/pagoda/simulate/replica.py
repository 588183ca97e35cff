"""One replica: the real scheduler in simulated time."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagoda.base.errors import RequestError
from pagoda.core.batch import Ints
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.core.limits import SchedulerLimits
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.plan import StepPlan, StepResult
from pagoda.core.routing import ReplicaLoad
from pagoda.planner.devices.step_table import StepTable
from pagoda.simulate.leaping import LeapingScheduler
from pagoda.simulate.records import Records
from pagoda.simulate.sharing import Pace, Sharing, Work
from pagoda.simulate.traces import Arrival

_NO_TOKEN = -1.0
# A leap of fewer steps costs more than they do.
_FEWEST = 3
_MOST = 4096


@dataclass(frozen=True)
class Machine:
    """What one replica runs on."""

    limits: SchedulerLimits
    groups: tuple[GroupSpec, ...]
    num_slabs: int
    """As `MemoryPlan.num_slabs`."""
    kv_tokens: int
    """Tokens that the KV cache has room for."""
    steps: StepTable
    steps_in_flight: int = 1
    """As `Executor.steps_in_flight`."""
    enable_prefix_caching: bool = True
    sharing: Sharing = Sharing()
    engines: int = 1
    """Replicas that share one such machine."""


@dataclass(slots=True)
class _Live:
    arrival: Arrival
    first: float = _NO_TOKEN


class Replica:
    """Does at a time what is due then, and says when it is to be woken next.

    Where the steps that come are alike, it sleeps until the last of them ends. A request that
    comes meanwhile finds it as if each had been taken.
    """

    def __init__(self, machine: Machine, records: Records, *, leaps: bool = True):
        self.scheduler = LeapingScheduler(
            machine.limits,
            KVCacheManager(machine.groups, machine.num_slabs, machine.enable_prefix_caching),
        )
        self.wakes_at: float | None = None
        """When something is due; None while it is idle."""
        self.busy = 0.0
        """Seconds in which a step was computed."""
        self.num_prompt_tokens = 0
        """Tokens of the prompts of its requests."""
        self._machine, self._records, self._leaps = machine, records, leaps
        self._live: dict[str, _Live] = {}
        self._in_flight: deque[tuple[StepPlan, Work]] = deque()
        """Plans with what they take, the first of which is being computed."""
        self._pace = machine.sharing.pace(1)
        self._seconds = 0.0
        """What the step takes that is being computed."""
        self._ahead: _Ahead | None = None
        """Steps that are alike, and not taken yet."""
        self._taken = self._began = 0.0
        """When the last result was taken in; since when it is busy."""
        self._last_token = np.zeros(0)
        """By row, when its request got its last token."""
        self._reply = np.zeros(0, np.int64)
        """By row, the token that its reply consists of."""
        self._replies: tuple[object, list[int]] = (None, [])
        """The same of the rows of the last plan."""

    @property
    def load(self) -> ReplicaLoad:
        limits = self._machine.limits
        return ReplicaLoad(
            len(self._live), self.num_prompt_tokens, limits.max_num_reqs, self._machine.kv_tokens
        )

    def add(self, now: float, arrival: Arrival, message: AddRequest) -> None:
        """A request comes, which is served or refused."""
        self._catch_up(now)
        try:
            self.scheduler.add(message)
        except RequestError as error:
            self._records.refuse(now, str(error))
            return
        self._live[message.req_id] = _Live(arrival)
        self.num_prompt_tokens += arrival.prompt_len
        self._records.came.append(now)
        self._records.prompt_tokens += arrival.prompt_len
        self._see_kv()
        if self.wakes_at is None:
            self.wakes_at = self._began = now

    def set_pace(self, now: float, pace: Pace) -> None:
        """From now on steps take another time; so does what is left of the one that is being
        computed."""
        if pace == self._pace:
            return
        self._catch_up(now)
        before, self._pace = self._pace, pace
        if self._in_flight and self.wakes_at is not None:
            work = self._in_flight[0][1]
            left = (self.wakes_at - now) * (work.at(pace) / work.at(before))
            self._seconds += now + left - self.wakes_at
            self.wakes_at = now + left

    def _catch_up(self, now: float) -> None:
        """Take the steps that are over, of those that are taken at once."""
        if self._ahead is not None:
            self._leap(self._ahead, bisect_left(self._ahead.ends, now))

    def wake(self, ended: Callable[[Arrival, float], object]) -> None:
        """Do what is due; `ended` is told of each request that ends, and when."""
        now = self.wakes_at
        assert now is not None  # nothing is due
        if self._ahead is not None:
            self._leap(self._ahead, len(self._ahead.ends))
            return
        if self._in_flight:
            self._commit(now, ended)
        if not (self._leaps and self._look_ahead(now)):
            self._plan(now)

    def _commit(self, now: float, ended: Callable[[Arrival, float], object]) -> None:
        plan, _ = self._in_flight.popleft()
        result = StepResult(step_id=plan.step_id, tokens=self._tokens(plan))
        deltas = self.scheduler.commit(plan, result, self._seconds)
        rows = plan.rows
        if plan.unsampled:
            rows = np.array([row for row in rows.tolist() if row not in plan.unsampled], np.int64)
        self._note_gaps(rows, now)
        self._taken = now
        for delta in deltas.others:
            self._note(delta, now, ended)

    def _plan(self, now: float) -> None:
        """Have as many plans in flight as the executor has."""
        while len(self._in_flight) < self._machine.steps_in_flight:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            for new in plan.new_rows:
                if new.request is not None:
                    self._open_row(new.row, self._live[new.req_id].arrival.reply)
            self._in_flight.append((plan, self._work(plan)))
        self._sleep(now)

    def _work(self, plan: StepPlan) -> Work:
        seconds, count = self._machine.steps.seconds(plan), len(plan.lens)
        served, is_prompt = self._machine.sharing.served, plan.num_tokens > count
        cpu = served.token_cpu * (count - len(plan.unsampled))
        return Work(seconds + served.step, is_prompt, cpu + served.request_cpu * len(plan.new_rows))

    def _stream_work(self, tokens: int, pairs: float) -> Work:
        """What a step takes in which each of so many requests gets a token."""
        served = self._machine.sharing.served
        seconds = self._machine.steps.decode_seconds(tokens, pairs)
        return Work(seconds + served.step, False, served.token_cpu * tokens)

    def _sleep(self, now: float) -> None:
        """Until the step that begins now ends."""
        if self._in_flight:
            self._seconds = self._in_flight[0][1].at(self._pace)
            self.wakes_at = now + self._seconds
            return
        if self.scheduler.has_work():
            raise RuntimeError("Requests wait, and none of them can run.")
        self.busy += now - self._began
        self.wakes_at = None

    def _look_ahead(self, now: float) -> bool:
        """See when the last of several like steps ends, if there are any."""
        streams = self.scheduler.streams()
        if streams is None or streams.num_steps < _FEWEST:
            return False
        count, (tokens, pairs) = min(_MOST, streams.num_steps), streams.size
        machine, served, pace = self._machine, self._machine.sharing.served, self._pace
        alone = machine.steps.decodes_seconds(int(tokens), pairs, count) + served.step
        # As `Work.at` has it of each.
        seconds = alone * pace.decode + served.token_cpu * int(tokens) * pace.server
        ends = np.add.accumulate(np.concatenate(([now], seconds)))[1:]
        self._ahead = _Ahead(streams.rows, seconds.tolist(), ends.tolist())
        self.wakes_at = self._ahead.ends[-1]
        return True

    def _leap(self, ahead: "_Ahead", count: int) -> None:
        """Take so many of the steps that are alike, and start the one behind them."""
        self._ahead = None
        if count:
            rows, ends = ahead.rows, ahead.ends[:count]
            leap = self.scheduler.leap(ahead.seconds[:count], self._reply[rows].tolist())
            self._note_gaps(rows, ends[0])
            self._records.gaps.extend(np.diff(ends).tolist())
            self._records.gap_counts.extend([len(rows)] * (len(ends) - 1))
            self._last_token[rows] = self._taken = ends[-1]
            if self._in_flight:
                tokens, pairs = leap.size
                self._in_flight = deque([(leap.plan, self._stream_work(int(tokens), pairs))])
        self._plan(self._taken)

    def _note_gaps(self, rows: Ints, now: float) -> None:
        """Requests get a token each; what they waited for it counts, but for their first."""
        last = self._last_token[rows]
        self._last_token[rows] = now
        alike = last == self._taken
        if count := int(np.count_nonzero(alike)):
            self._records.gap(now - self._taken, count)
        if count < len(rows):
            for before in last[~alike].tolist():
                if before != _NO_TOKEN:
                    self._records.gap(now - before)

    def _note(
        self, delta: RequestDelta, now: float, ended: Callable[[Arrival, float], object]
    ) -> None:
        """Take note of a first token, and of an end."""
        live = self._live[delta.req_id]
        if live.first == _NO_TOKEN:
            live.first = now
        if delta.finish_reason is None:
            return
        del self._live[delta.req_id]
        arrival = live.arrival
        self.num_prompt_tokens -= arrival.prompt_len
        room = self._machine.limits.max_model_len - arrival.prompt_len
        num_tokens = min(arrival.output_len, room)
        self._records.finish(arrival.time, live.first, now, num_tokens)
        self._see_kv()
        ended(arrival, now)

    def _see_kv(self) -> None:
        kv = self.scheduler.kv
        self._records.kv_shares.append(1 - kv.num_free_blocks / kv.num_blocks)

    def _open_row(self, row: int, reply: int) -> None:
        if row >= len(self._reply):
            size = max(64, 2 * row)
            self._reply = np.resize(self._reply, size)
            self._last_token = np.resize(self._last_token, size)
        self._reply[row], self._last_token[row] = reply, _NO_TOKEN

    def _tokens(self, plan: StepPlan) -> list[int]:
        """What its requests get."""
        rows, tokens = self._replies
        if rows is not plan.rows:
            tokens = self._reply[plan.rows].tolist()
            self._replies = plan.rows, tokens
        return tokens


class _Ahead(NamedTuple):
    rows: Ints
    seconds: list[float]
    ends: list[float]
