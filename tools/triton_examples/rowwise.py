"""Norms, activations and rotary embeddings, in sizes of a model of 8B and of its heads."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from pagoda.kernels.ref.experts import Gating
from pagoda.kernels.triton import activation, norm, rope
from pagoda.kernels.triton.target import offers
from tools.triton_examples import Example

TYPES = (torch.bfloat16, torch.float16, torch.float32)
TOKENS, HIDDEN, HEADS, HEAD = 64, 4096, 32, 128


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def declined(dtype: torch.dtype, capability: int) -> str | None:
    return offers(capability, dtype)


def in_each_type(label: str, call: Callable[[torch.dtype], object]) -> Iterator[Example]:
    for dtype in TYPES:
        yield Example(label, name(dtype), partial(call, dtype), partial(declined, dtype))


def examples() -> Iterator[Example]:
    for size in (HIDDEN, 16384):
        yield from in_each_type(f"rows of {size}", partial(_norms, size))
    yield from in_each_type(f"heads of {HEAD}", _head_norms)
    for kind in ("gelu", "gelu_tanh", "relu", "silu"):
        yield from in_each_type(kind, partial(_activations, kind))
    yield from in_each_type("gates", _gates)
    for rotated in (HEAD, HEAD // 2):
        yield from in_each_type(f"{rotated} of {HEAD}", partial(_rotary, rotated))


def _norms(size: int, dtype: torch.dtype) -> None:
    x, weight = torch.empty(TOKENS, size, dtype=dtype), torch.empty(size)
    norm.rms_norm(x, weight, 1e-6)
    norm.layer_norm(x, weight, weight, 1e-6, x)
    norm.add_rms_norm(x, x.float(), weight, 1e-6)
    norm.add_rms_norm(x, x.float(), weight, 1e-6, weight, 0.5)


def _head_norms(dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, HEADS, HEAD, dtype=dtype)
    norm.rms_norm(x, torch.empty(HEAD), 1e-6)
    norm.gated_rms_norm(x.flatten(1), x.flatten(1), torch.empty(HEAD), 1e-6)


def _activations(kind: str, dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, 2 * HIDDEN, dtype=dtype)
    activation.activate(x, kind)
    activation.activate_and_mul(x, kind)


def _gates(dtype: torch.dtype) -> None:
    x = torch.empty(TOKENS, 2 * HIDDEN, dtype=dtype)
    activation.gate(x, Gating(1.702, 7.0))
    activation.sigmoid_mul(x, x)
    activation.add_gated(x, x, x[:, :1])
    activation.add_gated(x, x, None)
    activation.scale(x, 0.5)
    activation.soft_cap(x, 30.0)


def _rotary(rotated: int, dtype: torch.dtype) -> None:
    q = torch.empty(TOKENS, HEADS, HEAD, dtype=dtype)
    positions = torch.empty(TOKENS, dtype=torch.int64)
    rope.rotary(q, q[:, :8], positions, torch.empty(64, rotated))
