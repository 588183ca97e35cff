"""Gated delta nets (arXiv 2412.06464): the convolution in front, and the rule itself.

States are as in `kernels.ref.delta_net`. Their columns never mix: a program holds some of a value
head's in registers. Decode steps, requests of few tokens and those with drafts go token by token.
Prompts are taken in chunks: on tensor cores, whose products of 16-bit inputs are exact, by
`delta_tiles`; where Triton uses none, by the library (`delta_chunks`).
"""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.triton.delta_chunks import rule_of_prompts
from pagoda.kernels.triton.delta_tiles import EPS, FEW, is_short, log_decay, rule_of_chunks
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

_CONV_TOKENS, _CONV_CHANNELS = 16, 128
_CHANGING = ["tokens", "requests", "halvings"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""
_COLUMNS = 32
"""Of a state of 128 rows, which a program keeps in registers."""


@triton.jit
def _request_of(token, query_start, requests, halvings):
    """The request of each token: the last that starts at or before it."""
    low = tl.zeros_like(token)
    high = low + requests
    for _ in range(halvings):
        middle = (low + high) // 2
        after = tl.load(query_start + middle) <= token
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    return low


@triton.jit(do_not_specialize=_CHANGING)
def _conv(
    x, weight, bias, state, read, query_start, kv_lens, out, tokens, channels, requests, halvings,
    stride, slot_stride, width: tl.constexpr, biased: tl.constexpr, silu: tl.constexpr,
    block_tokens: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * block_tokens + tl.arange(0, block_tokens)
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    used = token < tl.load(query_start + requests)
    req = _request_of(token, query_start, requests, halvings)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    stale = used & (tl.load(kv_lens + req) > end - start)
    slot = state + tl.load(read + req).to(tl.int64) * slot_stride
    there = channel < channels
    total = tl.zeros([block_tokens, block], tl.float32)
    if biased:
        total += tl.where(used[:, None], tl.load(bias + channel, there, other=0.0), 0.0)
    for i in tl.static_range(width):
        source = token - (width - 1) + i
        own = (used & (source >= start))[:, None] & there
        value = tl.load(x + source.to(tl.int64)[:, None] * stride + channel, own, other=0.0)
        kept = (stale & (source < start))[:, None] & there
        place = (source - start + width - 1)[:, None] * channels + channel
        before = tl.load(slot[:, None] + place, kept, other=0.0)
        taps = tl.load(weight + i * channels + channel, there, other=0.0)
        total += taps * (value.to(tl.float32) + before)
    if silu:
        total *= tl.sigmoid(total)
    result = total.to(out.dtype.element_ty)
    at = out + token.to(tl.int64)[:, None] * channels + channel
    tl.store(at, result, (token < tokens)[:, None] & there)


@triton.jit
def _keep_inputs(
    x, state, read, write, query_start, kv_lens, channels, stride, slot_stride,
    width: tl.constexpr, block_width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    req = tl.program_id(0)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    place = tl.arange(0, block_width)[:, None]
    there = (place < width - 1) & (channel < channels)
    known = tl.where(tl.load(kv_lens + req) > end - start, width - 1, 0)
    slot = state + tl.load(read + req).to(tl.int64) * slot_stride
    # The last token first: the first one's may go where the others are read from.
    to = tl.load(write + end - 1, end > start, other=0).to(tl.int64)
    while to > 0:
        source = end - (width - 1) + place
        value = tl.load(
            x + source.to(tl.int64) * stride + channel, there & (source >= start), other=0.0
        )
        kept = there & (source < start) & (place < known)
        before = tl.load(slot + (source - start + width - 1) * channels + channel, kept, other=0.0)
        # Inputs move up within a slot: all are read before any is written.
        tl.debug_barrier()
        tl.store(
            state + to * slot_stride + place * channels + channel,
            value.to(tl.float32) + before, there,
        )  # fmt: skip
        end -= 1
        to = tl.load(write + end - 1, end > start, other=0).to(tl.int64)


@triton.jit
def _rule(
    qkv, strength, decay, rate, bias, state, read, write, query_start, kv_lens, out,
    heads, shared, key_dim, value_dim, stride, strength_stride, decay_stride, slot_stride, scale,
    tiled: tl.constexpr, short: tl.constexpr, block_key: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Token by token; of requests that are `short`, or of all."""
    column = (tl.program_id(0) * block + tl.arange(0, block))[None, :]
    head, req = tl.program_id(1), tl.program_id(2)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    # None of these waits for another.
    slot, length = tl.load(read + req).to(tl.int64), tl.load(kv_lens + req)
    rates, biases = tl.load(rate + head), tl.load(bias + head)
    asked = end > start
    if short:
        asked &= is_short(write, start, end)
    if asked:
        # Keys and queries as columns, as they meet the state: nothing is turned.
        key = tl.arange(0, block_key)[:, None]
        key_heads = heads // shared
        key_head = head % key_heads if tiled else head // shared
        is_key, is_value = key < key_dim, column < value_dim
        inside = is_key & is_value
        place = head * key_dim * value_dim + key * value_dim + column
        known = tl.where(length > end - start, key_dim, 0)
        now = tl.load(state + slot * slot_stride + place, inside & (key < known), other=0.0)
        q_at, k_at = key_head * key_dim, (key_heads + key_head) * key_dim
        v_at = 2 * key_heads * key_dim + head * value_dim
        token = start.to(tl.int64)
        while token < end:
            row = qkv + token * stride
            k = tl.load(row + k_at + key, is_key, other=0.0).to(tl.float32)
            q = tl.load(row + q_at + key, is_key, other=0.0).to(tl.float32)
            v = tl.load(row + v_at + column, is_value, other=0.0).to(tl.float32)
            beta = tl.sigmoid(tl.load(strength + token * strength_stride + head).to(tl.float32))
            shrink = log_decay(tl.load(decay + token * decay_stride + head), rates, biases)
            to = tl.load(write + token).to(tl.int64)
            k *= tl.rsqrt(tl.sum(k * k, axis=0) + EPS)[None, :]
            q *= (tl.rsqrt(tl.sum(q * q, axis=0) + EPS) * scale)[None, :]
            now *= tl.exp(shrink)
            now += k * (beta * (v - tl.sum(k * now, axis=0)[None, :]))
            result = tl.sum(q * now, axis=0)[None, :]
            at = out + token * (heads * value_dim) + head * value_dim + column
            tl.store(at, result.to(out.dtype.element_ty), is_value)
            if to > 0:
                tl.store(state + to * slot_stride + place, now, inside)
            token += 1


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    slots: StateSlots,
    *,
    bias: Tensor | None = None,
    silu: bool = True,
) -> Tensor:
    """As `kernels.ops.causal_conv`."""
    tokens, channels = x.shape
    width, requests = weight.shape[0], len(slots.kv_lens)
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    blocks = triton.cdiv(channels, _CONV_CHANNELS)
    _conv[(triton.cdiv(tokens, _CONV_TOKENS), blocks)](
        x, weight, weight if bias is None else bias, state, slots.read, slots.query_start,
        slots.kv_lens, out, tokens, channels, requests, requests.bit_length(), x.stride(0),
        state.stride(0), width=width, biased=bias is not None, silu=silu,
        block_tokens=_CONV_TOKENS, block=_CONV_CHANNELS,
    )  # fmt: skip
    _keep_inputs[(requests, blocks)](
        x, state, slots.read, slots.write, slots.query_start, slots.kv_lens, channels,
        x.stride(0), state.stride(0), width=width,
        block_width=triton.next_power_of_2(max(1, width - 1)), block=_CONV_CHANNELS,
    )  # fmt: skip
    return out


def gated_delta_rule(
    qkv: Tensor, strength: Tensor, decay: Decay, state: Tensor, slots: StateSlots, *, tiled: bool
) -> Tensor:
    """As `kernels.ops.gated_delta_rule`."""
    heads, key_dim, value_dim = state.shape[1:]
    tokens, requests = qkv.shape[0], len(slots.kv_lens)
    # Rows behind the last request have none to write them.
    out = torch.zeros((tokens, heads * value_dim), dtype=qkv.dtype, device=qkv.device)
    arguments = (qkv, strength, decay, state, slots, out)
    has_cores = capability(qkv) >= 80
    short = tokens > requests and not (has_cores and qkv.dtype == torch.float32)
    if short and has_cores:
        rule_of_chunks(*arguments, tiled=tiled)
    elif short:
        rule_of_prompts(*arguments, longer_than=FEW.value, tiled=tiled)
    block = min(_COLUMNS, max(16, triton.next_power_of_2(value_dim)))
    keys = (qkv.shape[1] - heads * value_dim) // 2
    _rule[(triton.cdiv(value_dim, block), heads, requests)](
        qkv, strength, decay.x, decay.rate, decay.bias, state, slots.read, slots.write,
        slots.query_start, slots.kv_lens, out, heads, heads * key_dim // keys, key_dim, value_dim,
        qkv.stride(0), strength.stride(0), decay.x.stride(0), state.stride(0), key_dim**-0.5,
        tiled=tiled, short=short, block_key=max(16, triton.next_power_of_2(key_dim)), block=block,
        num_warps=8,
    )  # fmt: skip
    return out
