"""How products are cut into tiles: defaults, and what was measured on the device that is there."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from pagoda.base.log import get_logger
from pagoda.kernels.triton.products.layouts import Layout

Tensor = torch.Tensor

log = get_logger(__name__)

CLASSES = (16, 32, 64, 128)
"""Tokens that an expert has in the mean, rounded up; tiles are for no more than the last."""
_ROWS = (64, 128)
_WARPS = (4, 8)
_STAGES = (2, 3, 4)
_ROW_TYPES: list[type] = [bool, str, str, int, int, int, int, int, int, int]
# Registers of a thread for fp32 sums: those of a thread are 255 at most.
_SUMS = 128
# Sums of another tile's tensor cores differ by the order in which these add.
_TOLERANCE = 0.02


class Form(NamedTuple):
    """How one launch is cut."""

    tokens: int
    """Tokens of a tile; 1 computes without tensor cores."""
    rows: int
    warps: int
    stages: int


class Case(NamedTuple):
    """A product of experts that a form is measured for."""

    gated: bool
    """Gate and up together: two tiles of sums."""
    layout: str
    dtype: str
    rows: int
    columns: int
    tokens: int
    """Tokens of each expert: one of CLASSES."""

    @property
    def is_plain(self) -> bool:
        """Whether weights are not decoded; the name of a layout has no planes then."""
        return "__" in self.layout


_measured: dict[Case, Form] = {}


def case(
    gated: bool, layout: Layout, dtype: torch.dtype, rows: int, columns: int, tokens: int
) -> Case:
    """The case of experts [rows, columns] that have so many tokens each in the mean."""
    name = str(dtype).removeprefix("torch.")
    return Case(gated, repr(layout), name, rows, columns, class_of(tokens))


def class_of(tokens: int) -> int:
    return next((size for size in CLASSES if tokens <= size), CLASSES[-1])


def form(what: Case, target: int) -> Form:
    """As measured, or the default of a GPU of capability `target`."""
    return _measured.get(what) or experts_form(what, target)


# In each of these a warp has 16 rows of a tile or more: with fewer, several warps decode the same
# weights.


def experts_form(what: Case, target: int) -> Form:
    """The default of a GPU of capability `target`; as measured on an H100."""
    if not _is_large(target):
        # There the sums of two products of more tokens, and the codes, do not fit the registers.
        few = what.tokens <= 32 or what.gated
        return _few(what.tokens) if few else Form(64, 128, 8, 2)
    if what.tokens <= 32:
        return Form(16 if what.tokens <= 16 else 32, 64, 4, 4)
    # Plain weights come with the activations through shared memory, which two tiles then share.
    return Form(64 if what.is_plain else min(what.tokens, 128), 128, 8, 2)


def linear_form(tokens: int, target: int) -> Form:
    """The form for a linear layer; not for single tokens. As measured on an H100."""
    if _is_large(target):
        if tokens <= 32:
            return _few(tokens)
        if tokens <= 64:
            return Form(64, 128, 8, 2)
        return Form(64, 128, 4, 2) if tokens <= 128 else Form(128, 128, 8, 2)
    if tokens <= 32:
        return _few(tokens)
    # So few tokens have their columns split over programs; then tiles of 64 rows spill.
    return Form(64, 128, 8, 2) if tokens <= 64 else Form(64, 64, 4, 2)


def _few(tokens: int) -> Form:
    return Form(16, 64, 4, 3) if tokens <= 16 else Form(32, 64, 4, 2)


def _is_large(target: int) -> bool:
    return target in (90, 100)


def rows_of_tile(layout: Layout, dtype: torch.dtype, rows: int) -> int:
    """For single tokens, of a matrix of `rows`, which are no fewer: each of 128 threads has quads
    of four rows (eight, of codes of 8 bits), for which it loads and widens activations once, or 16
    bytes of plain weights."""
    wanted = 64 if layout.planes else 16 if dtype.itemsize == 4 else 32
    return min(wanted, 1 << (rows.bit_length() - 1))


def tune(
    what: Case,
    target: int,
    compute: Callable[[], Tensor],
    seconds: Callable[[Callable[[], Tensor]], float],
) -> Iterator[Form]:
    """Measure `compute` (its result has any shape), which is of the case `what`, in one form after
    the other, and take the fastest from the end on. Yields each form behind its measurement, when
    all is as it was before.

    `seconds` times a call. A form that does not fit the device or gives something else than the
    default is passed over.
    """
    best = experts_form(what, target)
    times: dict[Form, float] = {}
    expected: Tensor | None = None
    for alternatives in (_tiles, _with_warps, _with_stages):
        for candidate in alternatives(what, best):
            if candidate in times:
                continue
            with _using(what, candidate):
                try:
                    found = compute()
                    alike = expected is None or _alike(found, expected, candidate, what)
                    times[candidate] = seconds(compute) if alike else inf
                except OutOfResources:
                    times[candidate] = inf
                else:
                    expected = found if expected is None else expected
            yield candidate
        best = min(times, key=lambda cut: times[cut])
    _measured[what] = best


def is_measured(what: Case) -> bool:
    return what in _measured


def measured(others: object = None) -> list[list[Any]]:
    """All cases and their forms, for `take` of another process; and of `others`, which it gave
    there, those that were not measured here."""
    found = _cases_of(others) | _measured
    return [[*what, *chosen] for what, chosen in sorted(found.items())]


def take(rows: object) -> int:
    """What `measured` gave to one of the same device, Triton and kernels: how many. Nothing where
    it is not whole."""
    found = _cases_of(rows)
    _measured.update(found)
    return len(found)


@cache
def kernels_version() -> str:
    """A hash of the sources of all kernels: what was measured with others says nothing of these."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _cases_of(rows: object) -> dict[Case, Form]:
    if not isinstance(rows, list) or not all(map(_is_whole, rows)):
        return {}
    return {Case(*row[:-4]): Form(*row[-4:]) for row in rows}


def _is_whole(row: object) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != _ROW_TYPES:
        return False
    tokens, rows, warps, stages = row[-4:]
    return tokens in CLASSES and rows in _ROWS and warps in _WARPS and stages in _STAGES


def _tiles(what: Case, best: Form) -> Iterator[Form]:
    """The default first: it is right, and what the others are compared with."""
    yield best
    for tokens in sorted({max(CLASSES[0], what.tokens // 2), what.tokens}, reverse=True):
        for rows in _ROWS:
            cuts = (Form(tokens, rows, warps, best.stages) for warps in (best.warps, *_WARPS))
            yield next((cut for cut in cuts if _fits(what, cut)), best)


def _with_warps(what: Case, best: Form) -> Iterator[Form]:
    cuts = (best._replace(warps=warps) for warps in _WARPS)
    return (cut for cut in cuts if _fits(what, cut))


def _with_stages(what: Case, best: Form) -> Iterator[Form]:
    return (best._replace(stages=stages) for stages in _STAGES)


def _fits(what: Case, cut: Form) -> bool:
    """Registers hold the sums, and each warp has 16 rows at least."""
    sums = cut.tokens * cut.rows * (2 if what.gated else 1)
    return sums <= _SUMS * 32 * cut.warps and cut.rows >= 16 * cut.warps


@contextmanager
def _using(what: Case, cut: Form) -> Iterator[None]:
    before = _measured.get(what)
    _measured[what] = cut
    try:
        yield
    finally:
        del _measured[what]
        if before is not None:
            _measured[what] = before


def _alike(found: Tensor, expected: Tensor, cut: Form, what: Case) -> bool:
    """Infinities and NaN, too, lie in the same places."""
    wide, other = found.float(), expected.float()
    largest = other.abs().nan_to_num(0.0, posinf=0.0).max().item()
    limits = {"rtol": _TOLERANCE, "atol": _TOLERANCE * largest}
    if torch.allclose(wide, other, **limits, equal_nan=True):
        return True
    log.error(
        "Experts cut as %s give other results than the default, for %s; they are not cut so. This "
        "is a fault of Pagoda, Triton or the GPU; please report it.",
        tuple(cut), tuple(what),
    )  # fmt: skip
    return False
