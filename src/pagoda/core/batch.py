"""The running batch: what a step of many requests reads and changes, in columns by row."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NO_ROW = -1
NEVER = 1 << 62
_FIRST_ROWS = 16
_COLUMNS = (
    "computed", "missing", "known", "planned_in_bulk_until", "committed_in_bulk_until",
    "stream_from", "compute_limit",
)  # fmt: skip


class RunningBatch:
    """Numbers of requests in columns; a decode step moves some of them on by one.

    A request has a row from its first plan until it ends, also while it is preempted. The runner
    keeps what it knows of the request in a row of the same number.
    """

    computed: Ints
    """As `Request.num_computed_tokens`."""
    missing: Ints
    """How many more tokens are expected than are computed: 1 of a stream, before and behind each
    of its steps."""
    known: Ints
    """Tokens whose value is known: the length of `Request.token_ids`."""
    planned_in_bulk_until: Ints
    """Below so many computed tokens a request's next one is planned with all others': its block
    tables have room, and nothing is to be decided. 0: each step is planned for it alone."""
    committed_in_bulk_until: Ints
    """While fewer tokens are known, one more only makes that number larger, unless it is a stop
    token. 0: each result is taken in for the request alone."""
    stream_from: Ints
    """From so many computed tokens on the request generates."""
    compute_limit: Ints
    """Tokens whose KV is of use."""

    def __init__(self) -> None:
        self.num_jumps = 0
        """How often `computed` has changed other than by a step's one token of each stream."""
        self._bulk_plan_rows = self._bulk_commit_rows = np.zeros(0, np.int64)
        """The rows that were last found to be planned, and committed, in bulk as a whole."""
        self._bulk_plan_steps = self._bulk_commit_steps = 0
        """For how many more steps that holds."""
        self._table = np.zeros((len(_COLUMNS), 0), np.int64)
        self._stop_ids: Counter[int] = Counter()
        self._free: list[int] = []
        self._grow(_FIRST_ROWS)

    def take(
        self, prompt_len: int, compute_limit: int, stream_from: int, stop_ids: Iterable[int]
    ) -> int:
        """A row for a request of which nothing is computed."""
        if not self._free:
            self._grow(2 * self._table.shape[1])
        row = self._free.pop()
        self._table[:, row] = 0
        self.missing[row] = self.known[row] = prompt_len
        self.stream_from[row], self.compute_limit[row] = stream_from, compute_limit
        self._stop_ids.update(stop_ids)
        return row

    def release(self, row: int, stop_ids: Iterable[int]) -> None:
        """The request of a row has ended. Results of plans in flight find nothing to
        commit in bulk there."""
        self._table[:, row] = 0
        self._bulk_commit_steps = 0
        for token in stop_ids:
            self._stop_ids[token] -= 1
            if not self._stop_ids[token]:
                del self._stop_ids[token]
        self._free.append(row)

    def handle_alone(self, row: int) -> None:
        """Have the next step of a row's request planned, and its result taken in, one by one."""
        self.planned_in_bulk_until[row] = self.committed_in_bulk_until[row] = 0
        self._bulk_plan_steps = self._bulk_commit_steps = 0

    def move_on(self, rows: Ints, num_steps: int) -> None:
        """Streams have computed, and got, so many tokens more, and have blocks for them."""
        self.computed[rows] += num_steps
        self.known[rows] += num_steps
        self._bulk_plan_steps = self._bulk_commit_steps = 0

    def may_stop(self, tokens: list[int]) -> bool:
        """Whether one of these ends some request."""
        return not self._stop_ids.keys().isdisjoint(tokens)

    def planned_alone(self, rows: Ints) -> tuple[list[int], list[int]]:
        """Which of these rows cannot be planned in bulk, as indices: streams whose block tables are
        full, and all others."""
        if rows is self._bulk_plan_rows and self._bulk_plan_steps:
            self._bulk_plan_steps -= 1
            return [], []
        computed, until = self.computed[rows], self.planned_in_bulk_until[rows]
        left = until - computed
        least = int(np.minimum.reduce(left, initial=NEVER))
        if least > 0:
            self._bulk_plan_rows, self._bulk_plan_steps = rows, least - 1
            return [], []
        due = (left <= 0).nonzero()[0]
        full = (until[due] > 0) & (computed[due] < self.compute_limit[rows[due]])
        if full.all():
            return due.tolist(), []
        return due[full].tolist(), due[~full].tolist()

    def committed_in_bulk(
        self, rows: Ints, starts: Ints, lens: Ints, follows: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Which of a plan's rows a token each is committed to in bulk; None: to all. Each result
        calls this, in the order of plans, or `end_bulk_commits`."""
        if follows and self._bulk_commit_steps and rows is self._bulk_commit_rows:
            self._bulk_commit_steps -= 1
            return None
        known = self.known[rows]
        left = self.committed_in_bulk_until[rows] - known
        left[known != starts + lens] = 0
        least = int(np.minimum.reduce(left))
        if least <= 0:
            self._bulk_commit_steps = 0
            return left > 0
        self._bulk_commit_rows, self._bulk_commit_steps = rows, least - 1
        return None

    def end_bulk_commits(self) -> None:
        """A result was taken in request by request, so what was found before may no longer hold."""
        self._bulk_commit_steps = 0

    def streams(self, rows: Ints) -> Ints:
        """Those of these rows whose requests get their next token from a step: all but their last
        token is computed."""
        generating = self.computed[rows] >= self.stream_from[rows]
        return rows[generating & (self.missing[rows] <= 1)]

    def claiming(self, rows: Ints) -> list[int]:
        """Places among these rows of requests that want more than the next block of an output."""
        far_behind = self.missing[rows] > 1
        return np.flatnonzero(far_behind | (self.stream_from[rows] == NEVER)).tolist()

    def far_behind(self, rows: Ints) -> list[int]:
        """Places among these rows of requests that miss several tokens."""
        return (self.missing[rows] > 1).nonzero()[0].tolist()

    def check(self, rows: Iterable[int]) -> None:
        """RuntimeError unless these rows, of all requests that have one, are all that are taken."""
        taken = sorted(rows)
        if sorted([*taken, *self._free]) != list(range(self._table.shape[1])):
            raise RuntimeError(f"Requests have the rows {taken}; {sorted(self._free)} are free.")

    def _grow(self, num_rows: int) -> None:
        old = self._table
        self._table = np.zeros((len(_COLUMNS), num_rows), np.int64)
        self._table[:, : old.shape[1]] = old
        for name, column in zip(_COLUMNS, self._table, strict=True):
            setattr(self, name, column)
        self._free = list(range(old.shape[1], num_rows))[::-1]
