"""How fast this machine reads memory and multiplies, measured in a fifth of a second.

In a process of its own, which starts while the doctor reads headers. One line of JSON asks, one
answers. It goes without numpy, whose import takes as long as half of what is measured.
"""

import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pagoda.base.log import get_logger
from pagoda.doctor.machine.load import others_share, ticks

if TYPE_CHECKING:
    from pagoda.planner.devices.speed import DeviceSpeed

log = get_logger(__name__)

# What is read is dropped from the caches first; where a process cannot do that, a buffer is read
# that no cache holds.
_READ_BYTES, _UNCACHED_BYTES = 24 << 20, 256 << 20
_SECONDS = 0.012
_FEWEST_RUNS = 3
# Large enough for full speed, small enough for the caches: at most 1 and 2 MiB of bf16.
_DECODE_SHAPE = (256, 2048)
_PROMPT_SHAPE, _PROMPT_TOKENS = (512, 2048), 128
# What is left of a product of next to nothing is its start.
_TINY_SHAPE, _TINY_RUNS = (32, 256), 50
# A byte that is a sane number in every format, as a half, an exponent and a level.
_FILL = 0x2C
# The loop around a step (schedule, build the batch, sample, hand over) with one request: 8% of
# 3.6 to 5.6 ms as `bench latency --batch-size 1` divides them (docs/benchmarks/cpu.md).
_STEP_SECONDS = 400e-6
_TIMEOUT = 10.0


class Measuring:
    """The measuring process: begun early, asked when the model's formats are known."""

    def __init__(self) -> None:
        self.others = 0.0
        """Share of the CPU that other programs used while it was measured."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pagoda.doctor.machine.measure"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(self, storages: Sequence[str]) -> "DeviceSpeed | None":
        """With products in these storage formats; None where there are no native kernels, or the
        process failed."""
        from pagoda.planner.devices.speed import DeviceSpeed, ProductSpeed

        try:
            out, _ = self._process.communicate(json.dumps(list(storages)), timeout=_TIMEOUT)
            found = json.loads(out)
        except (subprocess.TimeoutExpired, ValueError) as error:
            self.close()
            log.warning("This machine's speed could not be measured: %s.", error)
            return None
        if found is None:
            return None
        self.others = found.pop("others")
        products = {name: ProductSpeed(*speeds) for name, speeds in found.pop("products").items()}
        return DeviceSpeed(products=products, **found)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Answer one question on stdin."""
    from pagoda.kernels import cpu

    cpu.set_num_threads(cpu.device_facts().num_threads)
    native = cpu.native()
    storages = json.loads(sys.stdin.read())  # who asks waits, and takes no core from here on
    answer: dict[str, Any] | None = None
    if native is not None:
        tick = 1 / os.sysconf("SC_CLK_TCK")
        before = ticks(tick)
        start = _start(native)
        answer = {
            "read": _read(native),
            "start": start,
            "step": _STEP_SECONDS,
            "floats": _floats(native),
            "products": {name: _product(native, name, start) for name in storages},
        }
        answer["others"] = others_share(before, ticks(tick))
    print(json.dumps(answer))


class _Buffer:
    """Zeros, and where they lie."""

    def __init__(self, nbytes: int):
        self._map = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._view)

    def fill(self, nbytes: int) -> None:
        ctypes.memset(self.address, _FILL, nbytes)


def _median(run: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    run()
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(samples) < _FEWEST_RUNS or time.perf_counter() < end:
        if before is not None:
            before()
        begun = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def _start(native: Any) -> float:
    tiny, _ = _matmul(native, "F32", *_TINY_SHAPE, 1)
    return _median(lambda: [tiny() for _ in range(_TINY_RUNS)]) / _TINY_RUNS


def _read(native: Any) -> float:
    from pagoda.kernels.cpu import _native  # type: ignore[attr-defined]  # a compiled module

    buffer = _Buffer(_READ_BYTES)
    drops = _native.drop_from_caches(buffer.address, _READ_BYTES)
    size = _READ_BYTES
    if not drops:
        size, buffer = _UNCACHED_BYTES, _Buffer(_UNCACHED_BYTES)
    _native.use_huge_pages(buffer.address, size)
    buffer.fill(size)

    def drop() -> None:
        if drops:
            _native.drop_from_caches(buffer.address, size)

    return size / _median(lambda: native.probe_read(buffer.address, size), drop)


def _floats(native: Any) -> float:
    steps = 20_000
    ops = native.probe_floats(steps)
    return float(ops / _median(lambda: native.probe_floats(steps)))


def _product(native: Any, storage: str, start: float) -> tuple[float, float]:
    """Bytes per second of decoding, operations per second of prompts."""
    rows, columns = _DECODE_SHAPE
    run, nbytes = _matmul(native, storage, rows, columns, 1)
    decode = nbytes / max(_median(run) - start, 1e-7)
    rows, columns = _PROMPT_SHAPE
    run, _ = _matmul(native, storage, rows, columns, _PROMPT_TOKENS)
    return decode, 2 * rows * columns * _PROMPT_TOKENS / _median(run)


def _matmul(
    native: Any, storage: str, rows: int, columns: int, tokens: int
) -> tuple[Callable[[], None], int]:
    """One product, and the bytes of its weights."""
    from pagoda.kernels import cpu
    from pagoda.weights.formats import FORMATS

    row_bytes = FORMATS[storage].nbytes(columns)
    raw = _Buffer(rows * row_bytes)
    raw.fill(rows * row_bytes)
    matrix = cpu.packed_matrix(storage, rows, columns)
    native.load(matrix, 0, rows, raw.address, row_bytes)
    x, out = _Buffer(4 * tokens * columns), _Buffer(4 * tokens * rows)
    x.fill(4 * tokens * columns)

    def run() -> None:
        native.matmul(x.address, columns, tokens, [matrix], out.address, rows)

    return run, rows * row_bytes


if __name__ == "__main__":
    main()
