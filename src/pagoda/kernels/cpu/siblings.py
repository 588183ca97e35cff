"""Whether cores that run two threads at once compute faster so: measured, for it depends on the
processor, and on how a virtual machine shows it."""

import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# A step of one token, and a prompt; both from the caches, for memory is as fast with either.
_ROWS, _COLUMNS, _STORAGE = 2048, 2048, "Q4_0"
_ROW_BYTES = _COLUMNS // 32 * 18
_PROMPT = 64
_ROUNDS = 7
# By how much a step has to become faster, and the other may become slower.
_GAIN, _LOSS = 0.95, 1.02


class Seconds(NamedTuple):
    token: float
    prompt: float


def worth_starting(cores: int, threads: int, measure: Callable[[list[int]], list[Seconds]]) -> int:
    """`cores`, or `threads` (more than these) where they make one of both steps faster and
    neither slower. `measure` gives the seconds of both with each of some numbers of threads."""
    few, many = measure([cores, threads])
    gains = [after / before for before, after in zip(few, many, strict=True)]
    return threads if min(gains) <= _GAIN and max(gains) <= _LOSS else cores


def measured(make: Callable[[int], Any], counts: list[int]) -> list[Seconds]:
    """In turns, the best of some rounds. `make` gives the kernels on so many threads."""
    from pagoda.kernels.cpu import packed_matrix

    natives = [make(count) for count in counts]
    matrix = packed_matrix(_STORAGE, _ROWS, _COLUMNS)
    rows = ctypes.create_string_buffer(_ROWS * _ROW_BYTES)
    natives[0].load(matrix, 0, _ROWS, ctypes.addressof(rows), _ROW_BYTES)
    x = (ctypes.c_float * (_PROMPT * _COLUMNS))()
    out = (ctypes.c_float * (_PROMPT * _ROWS))()

    def seconds(native: Any, tokens: int) -> float:
        begun = time.perf_counter()
        native.matmul(ctypes.addressof(x), _COLUMNS, tokens, [matrix], ctypes.addressof(out), _ROWS)
        return time.perf_counter() - begun

    turns = [
        [Seconds(seconds(native, 1), seconds(native, _PROMPT)) for native in natives]
        for _ in range(_ROUNDS)
    ]
    return [
        Seconds(*(min(turn[place][kind] for turn in turns) for kind in range(2)))
        for place in range(len(counts))
    ]
