"""Where the blocks of each row's request lie."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]


class BlockTable:
    """Blocks of every row in one KV group, in the order of their tokens."""

    def __init__(self, block_size: int, num_rows: int, max_tokens: int):
        self.block_size = block_size
        # Zeros of this size are untouched memory until a row is used.
        self.entries = np.zeros((num_rows, -(-max_tokens // block_size)), np.int32)
        self.used = np.zeros(num_rows, np.int64)

        self.changes = 0
        """Moves on with each change."""
        self.last_change: tuple[Ints, Ints, Ints] | None = None
        """Rows, columns and blocks of the entries that were all of the last one."""

    def append(self, rows: Ints, columns: Ints, blocks: Ints) -> None:
        """Take in new entries, those of a row in rising order."""
        width = self.entries.shape[1]
        if len(columns) and columns.max() >= width:
            # Lookahead past the context; nothing is ever computed there.
            inside = columns < width
            rows, columns, blocks = rows[inside], columns[inside], blocks[inside]
        self.entries[rows, columns] = blocks
        self.used[rows] = columns + 1
        self.changes += 1
        self.last_change = rows, columns, blocks

    def clear(self, row: int) -> None:
        self.entries[row, : self.used[row]] = 0
        self.used[row] = 0
        self.changes += 1
        self.last_change = None

    def of_rows(self, rows: Ints) -> npt.NDArray[np.int32]:
        """The table of these rows' requests, as wide as the longest."""
        return self.entries[:, : self.used[rows].max()].take(rows, axis=0)

    def have_room(self, rows: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
        """Whether each row has blocks for so many tokens."""
        return self.used[rows] * self.block_size >= ends

    def slots(self, rows: Ints, positions: Ints) -> Ints:
        blocks = positions // self.block_size
        return (self.entries[rows, blocks] - blocks) * self.block_size + positions

    def grow(self, num_rows: int) -> None:
        self.entries = grown(self.entries, num_rows, self.used)
        self.used = grown(self.used, num_rows)


def grown(old: np.ndarray, num_rows: int, used: Ints | None = None) -> np.ndarray:
    """A copy with more rows; of wide arrays only what is used, so the rest stays untouched."""
    new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
    if used is None:
        new[: len(old)] = old
    else:
        for row, count in enumerate(used.tolist()):
            new[row, :count] = old[row, :count]
    return new
