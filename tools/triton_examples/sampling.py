"""Choosing tokens and experts; logits are fp32 in every model."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from pagoda.kernels.triton import draw, sampling
from pagoda.kernels.triton.products import routing
from tools.triton_examples import Example
from tools.triton_examples.rowwise import in_each_type

ROWS, VOCAB = 8, 151_936


def examples() -> Iterator[Example]:
    for label, call in (("vocabulary of 151,936", _choose), ("20 of the top", _top)):
        yield Example(label, "float32", call, lambda capability: None)
    yield from in_each_type("8 of 128 experts", partial(_route, ROWS))
    yield from in_each_type("8 of 128 experts, and their order", partial(_route, 64))


def _choose() -> None:
    logits, index = torch.empty(ROWS, VOCAB), torch.empty(ROWS, dtype=torch.int64)
    sampling.first_max(logits)
    sampling.mask_logits(logits, index, torch.empty(ROWS, VOCAB // 32, dtype=torch.int32))
    kinds = (np.float32, np.int32, np.float64, np.float32, np.uint64, np.int64)
    params = draw.DrawParams(*(np.ones(ROWS, kind) for kind in kinds))
    draw.draw(index, logits, logits[:, 0].contiguous(), params)


def _top() -> None:
    sampling.top_tokens(torch.empty(ROWS, VOCAB), 20)


def _route(tokens: int, dtype: torch.dtype) -> None:
    routing.route(torch.empty(tokens, 128, dtype=dtype), 8, "softmax", True)
