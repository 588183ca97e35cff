"""A plan while it is made, request by request and streams all at once."""

import numpy as np

from pagoda.core.batch import Ints, RunningBatch
from pagoda.core.plan import NewBlocks, StepPlan
from pagoda.core.queue import Members
from pagoda.core.request import Request


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
        self._grown: list[tuple[list[int], list[int], list[int]]] = []

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
            req.drafts_in_flight = True
            req.be_heeded()
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
            rows, columns, entries = self._growth_of(group)
            rows += [req.row] * len(blocks)
            columns += range(column, column + len(blocks))
            entries += blocks

    def grow_each(self, rows: Ints, columns: Ints, blocks: list[list[int]]) -> None:
        """Per attention group, a block for each of some rows."""
        for group, mine in enumerate(blocks):
            all_rows, all_columns, entries = self._growth_of(group)
            all_rows += rows.tolist()
            all_columns += columns.tolist()
            entries += mine

    def finish(self) -> Members:
        """Complete the plan; its requests."""
        plan = self.plan
        self._end_singles()
        if len(self._columns) == 1:
            plan.rows, plan.starts, plan.lens = self._columns[0]
        elif self._columns:
            plan.rows, plan.starts, plan.lens = map(
                np.concatenate, zip(*self._columns, strict=True)
            )
        members = self._streams
        if members is None or len(members.requests) != len(self.requests):
            members = Members.of(self.requests)
        plan.req_ids, plan.num_tokens = members.req_ids, self._num_tokens
        if any(rows for rows, _, _ in self._grown):
            plan.new_blocks = [
                NewBlocks(*(np.array(part, np.int64) for part in parts)) for parts in self._grown
            ]
        return members

    def _end_singles(self) -> None:
        if self._singles:
            rows, starts, lens = np.array(self._singles, np.int64).T
            self._columns.append((rows, starts, lens))
            self._singles = []

    def _growth_of(self, group: int) -> tuple[list[int], list[int], list[int]]:
        while len(self._grown) <= group:
            self._grown.append(([], [], []))
        return self._grown[group]
