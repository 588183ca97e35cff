"""Steps of native ops, recorded while they run and replayed with one call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagoda.kernels.cpu._native import Native, Program
from pagoda.kernels.workspace import Workspace


class Recording:
    """A step's ops in order. A step has several numbers of rows (its tokens, the rows that are
    sampled); `max_rows` has the most of each."""

    def __init__(self, native: Native, max_rows: Sequence[int]):
        self._native = native
        self._max_rows = list(max_rows)
        self._program = Program(self._max_rows)
        self.workspace = Workspace()
        self.foreign: set[str] = set()
        """Ops seen that a replay would leave out: with any, it would compute something else."""

    @property
    def num_ops(self) -> int:
        count: int = self._program.num_ops
        return count

    @contextmanager
    def rows(self, count: int, rows: int) -> Iterator[None]:
        """Record the native ops of this block, which all have `rows` rows; at a replay as many
        as its `count`-th number says. Their outputs stay where they are as long as this does."""
        self._native.record(self._program, count, rows)
        try:
            with self.workspace.serving(rows, self._max_rows[count]), _Watch(self.foreign):
                yield
        finally:
            self._native.record(None)

    def replay(self, rows: Sequence[int]) -> None:
        """Compute the step anew, from what its inputs hold now."""
        self._native.replay(self._program, rows)


class _Watch(TorchDispatchMode):
    """Notes torch's own ops, but for views."""

    def __init__(self, foreign: set[str]):
        super().__init__()
        self._foreign = foreign

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if not func.is_view:
            self._foreign.add(str(func))
        result: torch.Tensor = func(*args, **(kwargs or {}))
        return result
