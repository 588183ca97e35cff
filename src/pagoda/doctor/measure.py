"""How fast this machine reads memory and multiplies, measured in a fifth of a second.

In a process of its own: what it fills to get past the caches is not the doctor's memory, and it
measures while the doctor reads headers. One line of JSON asks, one answers.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from pagoda.base.log import get_logger
from pagoda.planner.speed import DeviceSpeed, ProductSpeed

log = get_logger(__name__)

_READ_BYTES = (64 << 20, 256 << 20)
"""Least and most of a buffer that is read: no cache holds it, and it is filled soon."""
_SECONDS = 0.015
_FEWEST_RUNS = 5
# Large enough for full speed, small enough for the caches: at most 1 and 4 MiB of bf16.
_DECODE_SHAPE = (256, 2048)
_PROMPT_SHAPE, _PROMPT_TOKENS = (1024, 2048), 128
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pagoda.doctor.measure"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(self, weight_bytes: int, storages: Sequence[str]) -> DeviceSpeed | None:
        """None where there are no native kernels, or the process failed."""
        question = json.dumps({"bytes": weight_bytes, "storages": list(storages)})
        try:
            out, _ = self._process.communicate(question, timeout=_TIMEOUT)
            found = json.loads(out)
        except (subprocess.TimeoutExpired, ValueError) as error:
            self.close()
            log.warning("This machine's speed could not be measured: %s.", error)
            return None
        if found is None:
            return None
        products = {name: ProductSpeed(**speed) for name, speed in found.pop("products").items()}
        return DeviceSpeed(products=products, **found)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Answer one question on stdin."""
    from pagoda.kernels import cpu

    native = cpu.native()
    question = json.loads(sys.stdin.read())
    answer = None
    if native is not None:
        speed = _measure(native, question["bytes"], question["storages"])
        answer = asdict(speed)
    print(json.dumps(answer))


def _measure(native: Any, weight_bytes: int, storages: Sequence[str]) -> DeviceSpeed:
    least, most = _READ_BYTES
    tiny, _ = _matmul(native, "F32", *_TINY_SHAPE, 1)
    start = _median(lambda: [tiny() for _ in range(_TINY_RUNS)]) / _TINY_RUNS
    return DeviceSpeed(
        read=_read(native, min(max(weight_bytes, least), most)),
        products={name: _product(native, name, start) for name in storages},
        start=start,
        step=_STEP_SECONDS,
        floats=_floats(native),
    )


def _median(run: Callable[[], object]) -> float:
    run()
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(samples) < _FEWEST_RUNS or time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def _read(native: Any, size: int) -> float:
    import numpy as np

    from pagoda.kernels.cpu import _native

    buffer = np.empty(size, np.uint8)
    _native.use_huge_pages(buffer.ctypes.data, size)
    buffer.fill(1)
    return size / _median(lambda: native.probe_read(buffer.ctypes.data, size))


def _floats(native: Any) -> float:
    steps = 20_000
    ops = native.probe_floats(steps)
    return float(ops / _median(lambda: native.probe_floats(steps)))


def _product(native: Any, storage: str, start: float) -> ProductSpeed:
    rows, columns = _DECODE_SHAPE
    run, nbytes = _matmul(native, storage, rows, columns, 1)
    decode = nbytes / max(_median(run) - start, 1e-7)
    rows, columns = _PROMPT_SHAPE
    run, _ = _matmul(native, storage, rows, columns, _PROMPT_TOKENS)
    return ProductSpeed(decode, 2 * rows * columns * _PROMPT_TOKENS / _median(run))


def _matmul(
    native: Any, storage: str, rows: int, columns: int, tokens: int
) -> tuple[Callable[[], None], int]:
    """One product, and the bytes of its weights."""
    import numpy as np

    from pagoda.kernels import cpu
    from pagoda.weights.formats import FORMATS

    raw = np.full((rows, FORMATS[storage].nbytes(columns)), _FILL, np.uint8)
    matrix = cpu.packed_matrix(storage, rows, columns)
    native.load(matrix, 0, rows, raw.ctypes.data, raw.strides[0])
    x = np.random.default_rng(0).standard_normal((tokens, columns), np.float32)
    out = np.empty((tokens, rows), np.float32)

    def run() -> None:
        native.matmul(x.ctypes.data, columns, tokens, [matrix], out.ctypes.data, rows)

    return run, raw.nbytes


if __name__ == "__main__":
    main()
