"""Norms, activations and rotary embeddings, in sizes of a model of 8B and of its heads."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from pagoda.kernels.ref.experts import Gating
from pagoda.kernels.triton import activation, norm, rope
from pagoda.kernels.triton.target import offers
from tools.triton_examples import Example

TYPES = (torch.bfloat16, torch.float16, torch.float32)
TOKENS, HIDDEN, HEADS, HEAD = 64, 8192, 32, 128


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def declined(dtype: torch.dtype, capability: int) -> str | None:
    return offers(capability, dtype)


def in_each_type(label: str, call: Callable[[torch.dtype], object]) -> Iterator[Example]:
    for dtype in TYPES:
        yield Example(label, name(dtype), partial(call, dtype), partial(declined, dtype))


def examples() -> Iterator[Example]:
    yield from in_each_type(f"rows of {HIDDEN}", _norms)
    yield from in_each_type(f"heads of {HEAD}", _head_norms)
    yield from in_each_type("gelu", _activations)
    yield from in_each_type("gates", _gates)
    yield from in_each_type(f"half of heads of {HEAD}", _rotary)


def _norms(dtype: torch.dtype) -> None:
    x, weight = torch.empty(TOKENS, HIDDEN, dtype=dtype), torch.empty(HIDDEN)
    norm.rms_norm(x, weight, 1e-6)
    norm.layer_norm(x, weight, weight, 1e-6, x)
    norm.add_rms_norm(x, x.float(), weight, 1e-6)
    norm.add_rms_norm(x, x.float(), weight, 1e-6, weight, 0.5)


def _head_norms(dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, HEADS, HEAD, dtype=dtype)
    norm.rms_norm(x, torch.empty(HEAD), 1e-6)
    norm.gated_rms_norm(x.flatten(1), x.flatten(1), torch.empty(HEAD), 1e-6)


def _activations(dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, 2 * HIDDEN, dtype=dtype)
    activation.activate(x, "gelu")
    activation.activate_and_mul(x, "gelu")


def _gates(dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, 2 * HIDDEN, dtype=dtype)
    activation.gate(x, Gating(1.702, 7.0))
    activation.sigmoid_mul(x, x)
    activation.add_gated(x, x, x[:, :1])
    activation.soft_cap(x, 30.0)


def _rotary(dtype: torch.dtype) -> None:
    q = torch.empty(TOKENS, HEADS, HEAD, dtype=dtype)
    positions = torch.empty(TOKENS, dtype=torch.int64)
    rope.rotary(q, q, positions, torch.empty(64, HEAD // 2))
