"""Counts what a GPU would be given to compute: launches of Triton's kernels, and operators of torch
that are more than a view or new memory."""

from collections import Counter
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty")


class Launches(TorchDispatchMode):
    """By name, while it is entered; interpreted kernels compute with torch, which counts as
    nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._inside = False

    def __enter__(self):
        self._patches = []
        for kind in (InterpretedFunction, JITFunction):
            run = kind.run

            def counted(kernel, *args, run=run, **kwargs):
                self.counts[f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"] += 1
                self._inside = True
                try:
                    return run(kernel, *args, **kwargs)
                finally:
                    self._inside = False

            self._patches.append(mock.patch.object(kind, "run", counted))
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error):
        for patch in self._patches:
            patch.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not self._inside and name not in _ALLOCATIONS and not _is_view(func, result, args):
            self.counts[f"torch.{name}"] += 1
        return result


def _is_view(func, result, args) -> bool:
    if func._schema.is_mutable:
        return False
    parts = result if isinstance(result, tuple | list) else (result,)
    known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
    return all(
        part.untyped_storage().data_ptr() in known
        for part in parts
        if isinstance(part, torch.Tensor)
    )
