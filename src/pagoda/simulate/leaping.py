"""The scheduler. It plays several steps at once if each is like the one before."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from pagoda.core.batch import Ints
from pagoda.core.counters import count_step
from pagoda.core.plan import StepPlan
from pagoda.core.planning import Finished
from pagoda.core.queue import Members
from pagoda.core.scheduler import Scheduler
from pagoda.core.step_time import StepSize


class Streams(NamedTuple):
    """Steps that only move the same requests on."""

    rows: Ints
    """The rows of these requests."""
    size: StepSize
    """The size of the next step whose result is not in; each one behind it has as many pairs more
    as it has tokens."""
    num_steps: int
    """So many end before any request does, and have room for their blocks."""


class LeapingScheduler(Scheduler):
    """A scheduler without runner, whose replies have the length that is asked for and nothing that
    stops them. A leap leaves it as so many steps do, down to the blocks of each request."""

    def streams(self) -> Streams | None:
        """The steps that come if no request does; None unless all of them are of streams."""
        last, batch, members = self._last, self._batch, self._running.members
        if last is None or not last.is_of_streams or members is not last.members:
            return None
        # With windows or states, what a request gives back along the way is another's to take.
        if len(self.kv.groups) != 1 or self.kv.has_windows or self.kv.has_states:
            return None
        if batch.num_jumps != last.num_jumps or self._others_wait:
            return None
        rows, in_flight = members.rows, len(self._in_flight)
        if in_flight and (in_flight > 1 or last.plan.step_id not in self._in_flight):
            return None
        known, ahead = batch.known[rows], 1 - in_flight
        in_bulk = batch.committed_in_bulk_until[rows] * batch.planned_in_bulk_until[rows] > 0
        if not np.logical_and.reduce(in_bulk & (known == batch.computed[rows] + ahead)):
            return None
        num_steps = int(np.minimum.reduce(batch.compute_limit[rows] - known))
        size = StepSize(last.size.tokens, last.size.pairs + ahead * len(rows))
        return Streams(rows, size, self._with_blocks(rows, num_steps))

    def _with_blocks(self, rows: Ints, num_steps: int) -> int:
        """How many of so many steps have room for their blocks."""
        left = self._batch.planned_in_bulk_until[rows] - self._batch.computed[rows]
        free, size = self.kv.num_free_blocks, self.kv.block_size

        def lacks(steps: int) -> bool:
            return bool(np.add.reduce(np.maximum(0, -(-(steps - left) // size))) > free)

        return (
            bisect_left(range(1, num_steps + 1), True, key=lacks) if lacks(num_steps) else num_steps
        )

    def leap(self, seconds: Sequence[float], tokens: Sequence[int]) -> "Leap":
        """Take as many steps of `streams` as have `seconds`, in which each request, in their order,
        gets one of `tokens`."""
        last, count = self._last, len(seconds)
        assert last is not None  # else there are no streams
        members, plan = last.members, last.plan
        self._extend_ahead(members, count)
        num_tokens = plan.num_tokens
        first = last.size.pairs + (0 if self._in_flight else num_tokens)
        for index, took in enumerate(seconds):
            size = StepSize(last.size.tokens, first + index * num_tokens)
            self._times.observe(size, took, True)
        count_step(self._stats, num_tokens, num_tokens, count)
        self._stats.generation_tokens += count * num_tokens
        self._batch.move_on(members.rows, count)
        for known, token in zip(members.token_ids, tokens, strict=True):
            known.extend(repeat(token, count))
        self._pass_bulk(members)
        self._last = moved = _moved(last, count)
        self._step_id = moved.plan.step_id
        if self._in_flight:
            self._in_flight = {self._step_id: moved}
        return Leap(moved.plan, moved.size)

    def _extend_ahead(self, members: Members, num_steps: int) -> None:
        """Give streams the blocks that so many steps ask for, in the order in which they would."""
        batch, rows, size = self._batch, members.rows, self.kv.block_size
        left = batch.planned_in_bulk_until[rows] - batch.computed[rows]
        due = (left < num_steps).nonzero()[0]
        if not len(due):
            return
        counts = -(-(num_steps - left[due]) // size)
        places = np.repeat(due, counts)
        nth = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = left[places] + size * nth
        in_order = places[np.lexsort((places, step))].tolist()
        self.kv.extend([members.requests[place].tables for place in in_order])
        grown = rows[due]
        until = batch.planned_in_bulk_until[grown] + size * counts
        batch.planned_in_bulk_until[grown] = np.minimum(until, batch.compute_limit[grown])

    def _pass_bulk(self, members: Members) -> None:
        """What is due to requests whose results would not all have been taken in with others'."""
        batch, rows = self._batch, members.rows
        for place in (batch.known[rows] > batch.committed_in_bulk_until[rows]).nonzero()[0]:
            req = members.requests[place]
            known = int(batch.known[req.row])
            while (until := int(batch.committed_in_bulk_until[req.row])) < known:
                self.progress.pass_bulk(req, until)


class Leap(NamedTuple):
    """Where a leap ended."""

    plan: StepPlan
    """The last that is planned: in flight where one was, else the last of those that ended."""
    size: StepSize


def _moved(last: Finished, count: int) -> Finished:
    """The plan that comes so many steps behind another."""
    plan = last.plan
    ahead = StepPlan(
        step_id=plan.step_id + count,
        req_ids=plan.req_ids,
        rows=plan.rows,
        starts=plan.starts + count,
        lens=plan.lens,
        num_tokens=plan.num_tokens,
        follows=True,
    )
    size = StepSize(last.size.tokens, last.size.pairs + count * plan.num_tokens)
    return Finished(ahead, last.members, size, last.num_jumps, True)
