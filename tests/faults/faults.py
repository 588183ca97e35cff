"""The Nth call of a kind fails, or ends the process: for every N until there is no Nth call."""

import builtins
import contextlib
import errno
import io
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

KINDS: dict[str, list[tuple[Any, str]]] = {
    "open": [(os, "open")],
    "fsync": [(os, "fsync")],
    "rename": [(os, "replace"), (os, "rename")],
    "cut": [(os, "truncate"), (os, "ftruncate")],
    "map": [(mmap, "mmap")],
    "write": [],
}


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


class Faults:
    """Counts calls of `kind`, and fails the one with the number `fatal`, from 1 on.

    A write that fails has written half of its bytes, as on a disk that became full.
    """

    def __init__(self, kind: str, fatal: int, error: Callable[[], BaseException] = full):
        self.kind = kind
        self.fatal = fatal
        self.error = error
        self.calls = 0

    def step(self, kind: str) -> bool:
        """Whether this call fails."""
        if kind == self.kind:
            self.calls += 1
        return kind == self.kind and self.calls == self.fatal

    def call(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self.step(kind):
                raise self.error()
            return real(*args, **options)

        return counted

    @contextlib.contextmanager
    def installed(self) -> Iterator["Faults"]:
        with contextlib.ExitStack() as patches:
            for kind, places in KINDS.items():
                for module, name in places:
                    counted = self.call(kind, getattr(module, name))
                    patches.enter_context(patch.object(module, name, counted))
            for module in (io, builtins):
                patches.enter_context(patch.object(module, "open", self.open))
            yield self

    def open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        # What has a descriptor was counted when it was opened.
        if not isinstance(file, int) and self.step("open"):
            raise self.error()
        if not any(letter in mode for letter in "wax+"):
            return _OPEN(file, mode, *args, **options)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), self)
        buffering = args[0] if args else options.get("buffering", -1)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, options.get("encoding"))


class _Raw(io.FileIO):
    def __init__(self, file: Any, mode: str, faults: Faults):
        super().__init__(file, mode)
        self._faults = faults

    def write(self, data: Any) -> int | None:
        if self._faults.step("write"):
            super().write(memoryview(data)[: len(data) // 2])
            raise self._faults.error()
        return super().write(data)


_OPEN = io.open
