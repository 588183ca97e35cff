"""A plan while it is made, request by request and streams all at once."""

from typing import NamedTuple, Self

import numpy as np

from pagoda.core.batch import Ints, RunningBatch
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.plan import NewBlocks, StepPlan
from pagoda.core.queue import Members
from pagoda.core.request import Request
from pagoda.core.step_time import StepSize, size_of


class PlanBuilder:
    """Moves the batch's counters on with each request that it takes in."""

    def __init__(self, step_id: int, batch: RunningBatch):
        self.plan = StepPlan(step_id=step_id)
        self.requests: list[Request] = []
        """In the plan's order."""
        self._batch = batch
        self._num_tokens = 0
        self._columns: list[tuple[Ints, Ints, Ints]] = []
        """Rows, starts and lens of parts of the plan."""
        self._singles: list[tuple[int, int, int]] = []
        """The same of requests behind these parts."""
        self._streams: Members | None = None
        """All that is planned, if it is these as a whole."""
        self._grown: list[tuple[list[Ints], list[Ints], list[Ints]]] = []
        """By attention group: rows, columns and blocks, in parts."""

    def add_streams(self, members: Members, first: int, stop: int) -> None:
        """A token of each of some requests, which know all but the one that is being sampled."""
        self._end_singles()
        rows = members.rows
        if stop - first == len(rows):
            self._streams = members
        else:
            rows = rows[first:stop]
        starts = self._batch.computed[rows]
        self._batch.computed[rows] = starts + 1
        self._columns.append((rows, starts, members.ones[first:stop]))
        self._num_tokens += len(rows)
        self.requests += members.requests[first:stop]

    def add(self, req: Request, num_tokens: int) -> None:
        """A request's next tokens, with its drafts, if any."""
        start = req.num_computed_tokens
        end, drafts = start + num_tokens, req.draft_token_ids
        last = end - len(drafts) == req.num_expected_tokens
        req.num_computed_tokens = end
        if drafts:
            self.plan.drafts[req.row] = drafts
            req.draft_token_ids = []
            req.sits_out = True
            req.handle_alone()
        if last and req.generates:
            req.num_expected_tokens = end + 1
        if not last or not (req.generates or req.pools):
            self.plan.unsampled.add(req.row)
        self._singles.append((req.row, start, num_tokens))
        self._num_tokens += num_tokens
        self.requests.append(req)

    def grow(self, req: Request, tables: list[list[int]], column: int = 0) -> None:
        """Blocks of a request from a column of its tables on, per attention group."""
        for group, blocks in enumerate(tables):
            columns = np.arange(column, column + len(blocks))
            entries = np.array(blocks, np.int64)
            self._grow(group, np.full(len(blocks), req.row), columns, entries)

    def grow_each(self, new_blocks: list[NewBlocks]) -> None:
        """By attention group, a block for each of some rows."""
        for group, new in enumerate(new_blocks):
            self._grow(group, new.rows, new.columns, new.blocks)

    def finish(self, last: "Finished | None") -> "Finished":
        """Complete the plan, given the one before."""
        plan = self.plan
        self._end_singles()
        members = self._streams
        if members is None or len(members.requests) != len(self.requests):
            members = self._members_like(last)
        if len(self._columns) == 1:
            _, plan.starts, plan.lens = self._columns[0]
        elif self._columns:
            plan.starts, plan.lens = (
                np.concatenate([columns[index] for columns in self._columns]) for index in (1, 2)
            )
        plan.rows, plan.req_ids, plan.num_tokens = members.rows, members.req_ids, self._num_tokens
        if self._grown:
            plan.new_blocks = [NewBlocks(*map(_joined, parts)) for parts in self._grown]
        return Finished.of(plan, members, self._batch.num_jumps, last)

    def _members_like(self, last: "Finished | None") -> Members:
        """Its requests, those of the last plan where they are the same."""
        if last is not None and last.members.requests == self.requests:
            return last.members
        return Members.of(self.requests)

    def _end_singles(self) -> None:
        if self._singles:
            rows, starts, lens = np.array(self._singles, np.int64).T
            self._columns.append((rows, starts, lens))
            self._singles = []

    def _grow(self, group: int, rows: Ints, columns: Ints, blocks: Ints) -> None:
        while len(self._grown) <= group:
            self._grown.append(([], [], []))
        for parts, part in zip(self._grown[group], (rows, columns, blocks), strict=True):
            parts.append(part)


class Finished(NamedTuple):
    """A plan with its requests."""

    plan: StepPlan
    members: Members
    size: StepSize
    num_jumps: int
    """`RunningBatch.num_jumps` as the plan leaves it."""
    is_of_streams: bool
    """It gives each request one token, behind which that goes on."""

    @classmethod
    def of(cls, plan: StepPlan, members: Members, num_jumps: int, last: "Finished | None") -> Self:
        """Says whether the plan follows the last one."""
        is_of_streams = plan.num_tokens == len(plan.req_ids) > 0 and not (
            plan.drafts or plan.unsampled or plan.new_rows
        )
        if is_of_streams and last is not None and last.is_of_streams and members is last.members:
            plan.follows = bool((plan.starts == last.plan.starts + 1).all())
        return cls(plan, members, size_of(plan), num_jumps, is_of_streams)

    def have_drafted(self, count: int, kv: KVCacheManager) -> None:
        """Have the runner guess so many tokens behind those that it samples. Who is at the end of
        a block gets the next one for them already, if it is free."""
        plan = self.plan
        plan.num_drafts = count
        if not count:
            return
        grown = []
        for req in self.members.requests:
            wanted = min(req.num_computed_tokens + count, req.compute_limit)
            if req.row in plan.unsampled or wanted <= req.tables.capacity:
                continue
            column = req.tables.capacity // kv.block_size
            blocks = kv.allocate(req.tables, wanted)
            if blocks is None:
                break
            req.see_new_blocks()
            grown.append((req.row, column, blocks))
        if grown:
            plan.new_blocks = _with_blocks(plan.new_blocks, grown)

    def next(self, batch: RunningBatch) -> "Finished":
        """The plan that moves the same requests on by a token each: all are streams."""
        last = self.plan
        starts = last.starts + 1
        batch.computed[last.rows] = starts + 1
        plan = StepPlan(
            step_id=last.step_id + 1,
            req_ids=last.req_ids,
            rows=last.rows,
            starts=starts,
            lens=last.lens,
            num_tokens=last.num_tokens,
            follows=True,
        )
        size = StepSize(self.size.tokens, self.size.pairs + last.num_tokens)
        return Finished(plan, self.members, size, self.num_jumps, True)


def _with_blocks(
    known: list[NewBlocks], grown: list[tuple[int, int, list[list[int]]]]
) -> list[NewBlocks]:
    """By attention group: what is known, and rows, first columns and blocks of more."""
    found = []
    for group in range(len(grown[0][2])):
        entries = [
            (row, column + place, block)
            for row, column, blocks in grown
            for place, block in enumerate(blocks[group])
        ]
        more = np.array(entries, np.int64).T
        if known:
            last = known[group]
            more = np.concatenate([[last.rows, last.columns, last.blocks], more], axis=1)
        found.append(NewBlocks(*more))
    return found


def _joined(parts: list[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
