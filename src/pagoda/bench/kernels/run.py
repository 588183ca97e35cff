"""`bench micro`: each native kernel against what this machine can do at best.

The ceilings come first: how fast the kernels' threads read buffers of several sizes, and how many
multiplications and additions they do when nothing has to be fetched. A kernel's ceiling is the
longer of the two times that its bytes and its arithmetic would take at those speeds.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagoda.bench.kernels.cases import Case
from pagoda.kernels.cpu import _native  # type: ignore[attr-defined]  # a compiled module

_MB = 1 << 20
READ_SIZES = tuple(size * _MB for size in (1, 4, 16, 64, 128, 256, 512, 1024, 2048))
# Enough that starting the threads does not show.
_PROBE_SECONDS = 0.05
_FEWEST_RUNS = 5


@dataclass(frozen=True)
class Ceilings:
    read: dict[int, float]
    """Bytes per second by the buffer's bytes, rising."""
    dot: float
    """8-bit multiplications and additions per second."""
    fma: float
    """The same of fp32."""

    def bandwidth(self, size: int) -> float:
        """Bytes per second of a buffer of `size` bytes, between the measured ones by ratio."""
        sizes, speeds = np.array(list(self.read)), np.array(list(self.read.values()))
        return float(np.interp(np.log(size), np.log(sizes), speeds))

    def seconds(self, case: Case) -> float:
        """What the case takes at best."""
        peak = self.dot if case.arithmetic == "dot" else self.fma
        return max(case.nbytes / self.bandwidth(case.footprint), case.ops / peak)


@dataclass(frozen=True)
class Timing:
    case: Case
    seconds: float
    """Median of the calls."""
    ceiling: float
    """Seconds at best."""

    @property
    def percent(self) -> float:
        return 100 * self.ceiling / self.seconds


def measure_ceilings(
    native: Any, progress: Callable[[int, int], None], sizes: Sequence[int] = READ_SIZES
) -> Ceilings:
    """The best of several tries each."""
    read: dict[int, float] = {}
    for done, size in enumerate(sizes):
        read[size] = _read_speed(native, size)
        progress(done + 1, len(sizes))
    return Ceilings(read, _peak(native.probe_dots), _peak(native.probe_floats))


def time_cases(
    cases: Sequence[Case], ceilings: Ceilings, seconds: float, progress: Callable[[int, int], None]
) -> Iterator[Timing]:
    """Each for about `seconds`, and at least 5 calls behind one that does not count."""
    for done, case in enumerate(cases):
        run = case.prepare()
        samples = _samples(run, seconds)
        yield Timing(case, statistics.median(samples), ceilings.seconds(case))
        progress(done + 1, len(cases))


def _samples(run: Callable[[], object], seconds: float) -> list[float]:
    run()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < _FEWEST_RUNS or time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begun)
    return samples


def _read_speed(native: Any, size: int) -> float:
    buffer = np.empty(size, np.uint8)
    address = buffer.ctypes.data
    _native.use_huge_pages(address, size)
    buffer.fill(1)
    samples = _samples(lambda: native.probe_read(address, size), _PROBE_SECONDS)
    return size / min(samples)


def _peak(probe: Callable[[int], int]) -> float:
    """Operations per second."""
    steps = 1000
    while True:
        begun = time.perf_counter()
        ops = probe(steps)
        elapsed = time.perf_counter() - begun
        if elapsed >= _PROBE_SECONDS:
            break
        steps *= 2
    return ops / min(_samples(lambda: probe(steps), _PROBE_SECONDS))
