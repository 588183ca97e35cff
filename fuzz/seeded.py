"""Inputs from a seed: the corpus, changed. Needs nothing but Python.

`python -m fuzz.seeded NAME [--executions N] [--seconds S] [--seed S]` runs one harness and prints
its volume; an input that fails is kept in --findings.
"""

import argparse
import hashlib
import itertools
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fuzz.registry import NAMES, Harness, corpus, harness, regressions, words

MAX_INPUT = 1 << 16
SECONDS_PER_INPUT = 5.0
"""Of this process's own time, so that a busy machine finds nothing that is not there."""
_NUMBERS = (0, 1, 2, 7, 8, 31, 32, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1,
            2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip


class TooSlowError(BaseException):
    """One input took longer than any may. No Exception: nothing on the way may handle it."""


class FoundError(Exception):
    """A harness failed; `data` is the input."""

    def __init__(self, name: str, data: bytes):
        shown = repr(data if len(data) <= 200 else data[:200] + b"...")
        super().__init__(f"harness {name} failed on {len(data)} bytes: {shown}")
        self.data = data


def inputs(name: str, seed: int) -> Iterator[bytes]:
    """The corpus and all regressions, then changed ones without end."""
    known = [path.read_bytes() for path in (*corpus(name), *regressions(name))]
    yield from known
    change = _Change(random.Random(f"{name} {seed}"), known, words(name))
    while True:
        yield change.one()


def check(name: str, function: Harness, data: bytes) -> None:
    """One input; raises FoundError."""
    try:
        with _limited():
            function(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust's libraries, too
        raise FoundError(name, data) from error


@contextmanager
def _limited() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_PER_INPUT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"one input took more than {SECONDS_PER_INPUT:g} s")


class _Change:
    """Makes inputs of inputs, one to eight changes each."""

    def __init__(self, rng: random.Random, known: Sequence[bytes], words: Sequence[bytes]):
        self._rng = rng
        self._known = known
        self._words = words
        self._kinds: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._byte,
            self._number,
            self._digits,
            self._cut,
            self._double,
            self._splice,
            self._insert_word,
            self._insert_word,
            self._replace_by_word,
        )

    def one(self) -> bytes:
        rng = self._rng
        data = bytearray(rng.choice(self._known))
        for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
            rng.choice(self._kinds)(data)
        return bytes(data[:MAX_INPUT])

    def _place(self, data: bytearray) -> int:
        return self._rng.randrange(len(data)) if data else 0

    def _span(self, data: bytearray) -> slice:
        start = self._place(data)
        return slice(start, start + self._rng.choice((1, 1, 2, 4, 8, 32, 256)))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._place(data)] ^= 1 << self._rng.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._place(data)] = self._rng.randrange(256)

    def _number(self, data: bytearray) -> None:
        size, code = self._rng.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
        at = self._place(data)
        value = self._rng.choice(_NUMBERS) & ((1 << 8 * size) - 1)
        data[at : at + size] = struct.pack(code, value)

    def _digits(self, data: bytearray) -> None:
        """A number in a text takes another value."""
        places = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
        if not places:
            return
        start = end = self._rng.choice(places)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        value = self._rng.choice(
            (*map(str, _NUMBERS), "-1", "1e400", "0.5", "9" * 30, "9" * 400, "null")
        )
        data[start:end] = value.encode()

    def _cut(self, data: bytearray) -> None:
        del data[self._span(data)]

    def _double(self, data: bytearray) -> None:
        span = self._span(data)
        data[span.start : span.start] = data[span] * self._rng.choice((1, 1, 3, 50))

    def _splice(self, data: bytearray) -> None:
        other = self._rng.choice(self._known)
        if other:
            start = self._rng.randrange(len(other))
            part = other[start : start + self._rng.choice((4, 16, 64, 1024))]
            at = self._place(data)
            data[at : at + self._rng.choice((0, len(part)))] = part

    def _insert_word(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._rng.choice(self._words)

    def _replace_by_word(self, data: bytearray) -> None:
        data[self._span(data)] = self._rng.choice(self._words)


def session(
    name: str, seed: int, executions: int | None, seconds: float | None = None
) -> Iterator[FoundError | None]:
    """What each of so many inputs led to, or of those that so many seconds have room for."""
    function, end = harness(name), None if seconds is None else time.monotonic() + seconds
    for data in itertools.islice(inputs(name, seed), executions):
        try:
            check(name, function, data)
        except FoundError as error:
            yield error
        else:
            yield None
        if end is not None and time.monotonic() >= end:
            break


def keep(folder: Path, name: str, data: bytes) -> Path:
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--executions", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path, nargs="+", help="take these inputs instead")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz/findings"))
    options = parser.parse_args()
    if options.replay:
        for path in options.replay:
            check(options.name, harness(options.name), path.read_bytes())
        return 0
    done = failed = 0
    for error in session(options.name, options.seed, options.executions, options.seconds):
        done += 1
        if error is not None:
            failed += 1
            traceback.print_exception(error.__cause__)
            kept = keep(options.findings, options.name, error.data)
            print(f"{error}\nkept: {kept}", flush=True)
    print(f"executions: {done}, failures: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
