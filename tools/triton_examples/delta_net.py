"""Gated delta nets in the sizes of Qwen3.5, for a step that decodes and for a mixed one."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.triton import delta_net
from tools.triton_examples import Example
from tools.triton_examples.rowwise import in_each_type

KEY_HEADS, HEADS, HEAD, REQUESTS = 16, 32, 128, 4


def examples() -> Iterator[Example]:
    for form, tokens in (("decode", REQUESTS), ("mixed", 64)):
        yield from in_each_type(form, partial(_step, tokens))


def _step(tokens: int, dtype: torch.dtype) -> None:
    channels = (2 * KEY_HEADS + HEADS) * HEAD
    indices = torch.zeros(REQUESTS + 1, dtype=torch.int32)
    write = torch.zeros(tokens, dtype=torch.int32)
    slots = StateSlots(indices[1:], write, indices, indices[1:])
    x = torch.empty(tokens, channels, dtype=dtype)
    delta_net.causal_conv(x, torch.empty(4, channels), torch.empty(8, 3, channels), slots)
    gates, per_head = torch.empty(tokens, HEADS, dtype=dtype), torch.empty(HEADS)
    state = torch.empty(8, HEADS, HEAD, HEAD)
    decay = Decay(gates, per_head, per_head)
    delta_net.gated_delta_rule(x, gates, decay, state, slots, tiled=True)
