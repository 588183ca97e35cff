"""Adapters of two ranks beside the products of an 8B model, for a step that decodes."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels.triton import adapters
from tools.triton_examples import Example
from tools.triton_examples.rowwise import in_each_type

COLUMNS, SIZES, SLOTS, TOKENS = 4096, (4096, 1024, 1024), 4, 4


def examples() -> Iterator[Example]:
    for rank in (16, 64):
        yield from in_each_type(f"rank {rank}", partial(_add, rank))


def _add(rank: int, dtype: torch.dtype) -> None:
    outputs = sum(SIZES)
    adapters.add_adapters(
        torch.empty(TOKENS, outputs, dtype=dtype), torch.empty(TOKENS, COLUMNS, dtype=dtype),
        torch.empty(SLOTS, len(SIZES), rank, COLUMNS, dtype=dtype),
        torch.empty(SLOTS, rank, outputs, dtype=dtype), torch.empty(SLOTS, dtype=torch.int32),
        torch.empty(TOKENS, dtype=torch.int32), SIZES,
    )  # fmt: skip
