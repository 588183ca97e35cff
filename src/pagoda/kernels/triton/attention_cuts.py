"""How attention is cut into launches, and a launch into programs; without Triton's language."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton

from pagoda.kernels.triton.caches import CacheForm
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

SPLIT_QUERIES = 16
"""Requests with more queries than these have tiles enough."""
_MOST_PARTIAL = 256 << 20
"""Bytes of partial results of a launch, about: a step that has more is cut between requests. With
32 heads of 128 and 32 splits, those of 500 tokens."""
_CUT_AT = 4
"""Requests: places of a multiple of them are aligned as the first one's, for which kernels are
compiled."""


class Form(NamedTuple):
    """How one launch is cut."""

    rows: int
    keys: int
    warps: int
    stages: int
    dims: int = 1 << 20
    """Dimensions of each product of queries and keys."""


def form_of(q: Tensor, cache: CacheForm, group: int, few: bool) -> Form:
    """For q [tokens, heads, dim]; `few`: a step of one query per request, which only reads."""
    at_least = max(16, triton.next_power_of_2(group))
    wide = triton.next_power_of_2(q.shape[2]) * q.element_size()  # bytes of a row
    target = capability(q)
    if target < 80 or q.dtype == torch.float32:  # no tensor cores: the tile is in registers
        return Form(at_least, 16, 8 if q.shape[2] > 128 else 4, 1, 32)
    keys = 32 if wide > 256 or cache.storage == "int8" else 64
    if few:
        stages = 3 if target in (80, 90, 100) else 2
        return Form(at_least, keys, 8 if wide > 256 else 4, stages)
    # Larger tiles spill; on sm_90 products read the queries and the keys from shared memory.
    if wide > 512:
        return Form(max(at_least, 32), 16, 8, 2)
    if target == 90 and cache.storage == "plain":  # as measured on an H100
        return Form(max(at_least, 128), 64, 4 if wide <= 128 else 8, 2 if wide > 256 else 3)
    if wide > 256:
        rows, keys = (32, 64) if target == 100 else (64, 16)
        return Form(max(at_least, rows), keys, 8, 2)
    if target == 120 or (wide > 128 and target != 90):
        return Form(max(at_least, 64), 32 if cache.storage == "plain" else 16, 8, 2)
    rows = max(at_least, 128 if target in (90, 100) else 64)
    return Form(rows, keys, 8 if rows > 64 else 4, 2)


def encoder_form(q: Tensor) -> Form:
    """For q [tokens, heads, dim], all tokens of a text seeing each other."""
    wide = triton.next_power_of_2(q.shape[2]) * q.element_size()
    if capability(q) < 80 or q.dtype == torch.float32:
        return Form(16, 32 if wide <= 512 else 16, 4, 1)
    if wide > 256:
        return Form(64, 32, 8, 2)
    return Form(64, 64 if wide <= 128 or capability(q) == 90 else 32, 4, 2)


def cuts(host_query_start: npt.NDArray[np.int32], row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(first request, the one behind the last, tokens that have partial results) of each launch of
    a step, where the results of a token take `row_bytes`."""
    counts = np.diff(host_query_start)
    rows = np.where(counts <= SPLIT_QUERIES, counts, 0)
    most = max(1, _MOST_PARTIAL // row_bytes)
    first, taken = 0, 0
    for begin in range(0, len(rows), _CUT_AT):
        more = int(rows[begin : begin + _CUT_AT].sum())
        if taken and taken + more > most:
            yield first, begin, taken
            first, taken = begin, 0
        taken += more
    yield first, len(rows), taken
