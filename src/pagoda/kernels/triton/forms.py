"""How products are cut into tiles: defaults, and what was measured on the device that is there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.runtime.errors import OutOfResources

from pagoda.kernels.triton.layouts import Layout


class Form(NamedTuple):
    """How one launch is cut."""

    tokens: int
    """Of a tile; 1 computes without tensor cores."""
    rows: int
    warps: int
    stages: int


class Case(NamedTuple):
    """What a form is chosen for."""

    kind: str
    """`linear`, or `experts`: these may hold two tiles of sums."""
    layout: str
    dtype: str
    rows: int
    columns: int
    tokens: int
    """Rounded up to a power of two; of experts, what each has in the mean."""


_measured: dict[Case, Form] = {}

# Registers of a thread for fp32 sums: those of a thread are 255 at most.
_SUMS = 128


def case(kind: str, layout: Layout, dtype: torch.dtype, rows: int, columns: int, tokens: int):
    name = str(dtype).removeprefix("torch.")
    rounded = triton.next_power_of_2(max(1, tokens))
    return Case(kind, repr(layout), name, rows, columns, rounded)


def form(what: Case, target: int) -> Form:
    """As measured, or the default of a GPU of capability `target`; not for single tokens."""
    return _measured.get(what) or _default(what, target)


def rows_of_tile(layout: Layout, dtype: torch.dtype) -> int:
    """For single tokens, so that each of 128 threads loads 16 bytes of codes at a time (8 where
    elements are bytes)."""
    nbytes = layout.element_bytes(0) if layout.planes else dtype.itemsize
    return 16 if nbytes == 4 else 32


def _default(what: Case, target: int) -> Form:
    large = target in (90, 100)
    tokens = 128 if large else 64
    if what.tokens <= 16:
        return Form(16, 32, 4, 3)
    # Before sm_90 codes of two planes spill in tiles of 64 x 64, and of experts more.
    if what.tokens <= 32:
        return Form(32, 64, 4, 2)
    if what.kind == "linear":
        return Form(64, 64, 4, 2) if large and what.tokens <= 64 else Form(tokens, 128, 8, 2)
    return Form(min(what.tokens, tokens), 64, 8, 2) if large else Form(64, 32, 4, 2)


def candidates(what: Case, target: int) -> Iterator[Form]:
    """Forms worth measuring, the default first."""
    yield _default(what, target)
    held = 2 if what.kind == "experts" else 1
    for tokens in (16, 32, 64, 128):
        for rows in (32, 64, 128):
            for warps in (4, 8):
                fits = held * tokens * rows <= _SUMS * 32 * warps
                # A warp has 8 rows at least, and no tile is for more tokens than there are.
                if fits and rows >= 8 * warps and tokens <= max(16, what.tokens):
                    yield from (Form(tokens, rows, warps, stages) for stages in (2, 3, 4))


def tune(
    what: Case,
    target: int,
    call: Callable[[], object],
    seconds: Callable[[Callable[[], object]], float],
) -> Form:
    """Measure `call`, which computes `what`, in each form and take the fastest from now on.

    `seconds` times a call. Forms that do not fit the device are passed over; where none fits, the
    default stays.
    """
    times: dict[Form, float] = {}
    for candidate in dict.fromkeys(candidates(what, target)):
        _measured[what] = candidate
        try:
            times[candidate] = seconds(call)
        except OutOfResources:
            continue
    _measured.pop(what)
    if times:
        _measured[what] = min(times, key=lambda candidate: times[candidate])
    return form(what, target)


def keep(path: Path) -> None:
    """Write what was measured, for `restore`; a file is for one device and Triton alone."""
    rows = [[*what, *chosen] for what, chosen in sorted(_measured.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows))
    fresh.replace(path)


def restore(path: Path) -> int:
    """Take what an earlier process measured: how many forms. None where there is no file, or one
    that is not whole."""
    try:
        rows = json.loads(path.read_text())
        found = {Case(*row[:6]): Form(*map(int, row[6:])) for row in rows}
    except (OSError, ValueError, TypeError):
        return 0
    _measured.update(found)
    return len(found)
