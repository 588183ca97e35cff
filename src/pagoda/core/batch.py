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
    "computed", "missing", "known", "steady_until", "quiet_until", "stream_from", "compute_limit",
)  # fmt: skip


class RunningBatch:
    """Numbers of requests in columns; a decode step moves some of them on by one.

    A request has a row from its first plan until it ends, also while it is preempted. The runner
    keeps what it knows of the request in a row of the same number.
    """

    computed: Ints
    """`Request.num_computed_tokens`."""
    missing: Ints
    """How many more tokens are expected than are computed: 1 of a stream, before and behind each
    of its steps."""
    known: Ints
    """Tokens whose value is known: the length of `Request.token_ids`."""
    steady_until: Ints
    """Below so many computed tokens a step of one token needs neither a block nor a thought."""
    quiet_until: Ints
    """While so few tokens are known, one more changes nothing unless it is a stop token."""
    stream_from: Ints
    """From so many computed tokens on the request generates."""
    compute_limit: Ints
    """Tokens whose KV is of use."""

    def __init__(self) -> None:
        self.num_jumps = 0
        """How often `computed` has changed other than by a step's one token of each stream."""
        self._steady_rows = self._quiet_rows = np.zeros(0, np.int64)
        self._steady_steps = self._quiet_steps = 0
        """For so many more steps none of `_steady_rows` is unsteady, all of `_quiet_rows` quiet."""
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
        """The request of a row has ended. Results of plans in flight find nothing quiet there."""
        self._table[:, row] = 0
        self._quiet_steps = 0
        for token in stop_ids:
            self._stop_ids[token] -= 1
            if not self._stop_ids[token]:
                del self._stop_ids[token]
        self._free.append(row)

    def heed(self, row: int) -> None:
        """Have the next step of a row's request planned, and its result taken in, one by one."""
        self.steady_until[row] = self.quiet_until[row] = 0
        self._steady_steps = self._quiet_steps = 0

    def may_stop(self, tokens: list[int]) -> bool:
        """Whether one of these ends some request."""
        return not self._stop_ids.keys().isdisjoint(tokens)

    def unsteady(self, rows: Ints) -> tuple[list[int], list[int]]:
        """Places among these rows: of streams whose tables are full, and of requests that are more
        than a step of one token to plan."""
        if rows is self._steady_rows and self._steady_steps:
            self._steady_steps -= 1
            return [], []
        computed, steady = self.computed[rows], self.steady_until[rows]
        left = steady - computed
        least = int(np.minimum.reduce(left, initial=NEVER))
        if least > 0:
            self._steady_rows, self._steady_steps = rows, least - 1
            return [], []
        due = np.flatnonzero(left <= 0)
        full = (steady[due] > 0) & (computed[due] < self.compute_limit[rows[due]])
        if full.all():
            return due.tolist(), []
        return due[full].tolist(), due[~full].tolist()

    def quiet(
        self, rows: Ints, starts: Ints, lens: Ints, follows: bool
    ) -> npt.NDArray[np.bool_] | None:
        """For which of these rows a token behind a step's changes nothing but how many are known;
        None: for all. Called for each step in turn, or else `disturb`; `follows` is the plan's."""
        if follows and self._quiet_steps and rows is self._quiet_rows:
            self._quiet_steps -= 1
            return None
        known = self.known[rows]
        left = self.quiet_until[rows] - known
        left[known != starts + lens] = 0
        least = int(np.minimum.reduce(left))
        if least <= 0:
            self._quiet_steps = 0
            return left > 0
        self._quiet_rows, self._quiet_steps = rows, least - 1
        return None

    def disturb(self) -> None:
        """A result was taken in otherwise than quietly."""
        self._quiet_steps = 0

    def streams(self, rows: Ints) -> Ints:
        """Of these rows those whose requests get their next token from a step: all but their last
        token is computed."""
        generating = self.computed[rows] >= self.stream_from[rows]
        return rows[generating & (self.missing[rows] <= 1)]

    def claiming(self, rows: Ints) -> list[int]:
        """Places among these rows of requests that want more than the next block of an output."""
        far_behind = self.missing[rows] > 1
        return np.flatnonzero(far_behind | (self.stream_from[rows] == NEVER)).tolist()

    def far_behind(self, rows: Ints) -> list[int]:
        """Places among these rows of requests that miss several tokens."""
        return np.flatnonzero(self.missing[rows] > 1).tolist()

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
