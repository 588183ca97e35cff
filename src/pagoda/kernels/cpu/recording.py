"""Steps of native ops, recorded while they run and replayed with one call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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

    def profile(self, rows: Sequence[int]) -> list[tuple[str, float]]:
        """As `replay`; each op's name and the seconds that it took."""
        times: list[tuple[str, float]] = self._native.profile(self._program, rows)
        return times


# Methods that change a tensor or read its numbers, though no new tensor comes of them.
_IMPURE = frozenset(
    ("__setitem__", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")
)

_AUGMENTED = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or")
)


class _Watch(TorchFunctionMode):
    """Notes torch's own functions, but for views and questions of shape.

    (A TorchDispatchMode would see operators instead, and import 800 modules: 2 s and 68 MB.)
    """

    def __init__(self, foreign: set[str]):
        super().__init__()
        self._foreign = foreign

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name: str = getattr(func, "__name__", str(func))
        if _is_impure(name, kwargs) or not _is_view(result, args):
            self._foreign.add(name)
        return result


def _is_impure(name: str, kwargs: Any) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _IMPURE or name in _AUGMENTED or bool(kwargs and "out" in kwargs)


def _is_view(result: Any, args: Any) -> bool:
    """Whether all tensors of a result lie in the memory of arguments."""
    parts = result if isinstance(result, tuple | list) else (result,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
    return all(tensor.untyped_storage().data_ptr() in known for tensor in tensors)
