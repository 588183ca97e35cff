"""Gated delta nets (arXiv 2412.06464): the convolution in front, and the rule itself.

States are as in `kernels.ref.delta_net`. Their columns never mix: a program holds some of a value
head's in registers, token by token in a decode step, `_CHUNK` tokens at once where there are more.
Chunks need tensor cores, and inputs of 16 bits, whose products those compute exactly; where Triton
uses none, prompts are the library's (`delta_chunks`).
"""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.triton.delta_chunks import rule_of_prompts
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

# The fewest rows of a dot; solving for so many takes as many small steps, one behind the other.
_CHUNK = 16
_EPS = tl.constexpr(1e-6)
# Whose tokens a launch computes: everybody's, or those of requests with drafts, without, or with
# drafts or few tokens.
_ALL, _WITH_DRAFTS, _WITHOUT, _SHORT = (tl.constexpr(i) for i in range(4))
_FEW = tl.constexpr(16)
"""Tokens of a request."""
_CONV_TOKENS, _CONV_CHANNELS = 16, 128
_CHANGING = ["tokens", "requests", "halvings"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""
# Columns of a state of 128 rows that a program keeps in registers; with two parts of each as
# operands, the fewest of a dot.
_COLUMNS, _CHUNK_COLUMNS = 32, 16


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
def _per_length(x):
    """[tokens] of fp32 x [tokens, key_dim]: what makes the length of each row 1."""
    return tl.rsqrt(tl.sum(x * x, axis=1) + _EPS)


@triton.jit
def _times_wide(x, wide):
    """x, of 16 bits, times fp32 `wide`, as exact as a sum in fp32 is: in tf32, whose 11 bits hold
    each number of x, and each of `wide` in two parts."""
    high = (wide.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    x = x.to(tl.float32)
    low = tl.dot(x, wide - high, input_precision="tf32")
    return tl.dot(x, high, low, input_precision="tf32")


@triton.jit
def _log_decay(x, rate, bias):
    x = x.to(tl.float32) + bias
    # softplus; for large x the logarithm is x itself, and the exponential would overflow.
    return rate * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _is_asked(which, write, start, end):
    """Whether a launch for `which` computes the tokens of a request."""
    may_have = (which != _ALL) & (end > start + 1)
    has_drafts = tl.load(write + end - 2, may_have, other=0) > 0
    asked = (which == _ALL) | (has_drafts == (which == _WITH_DRAFTS))
    if which == _SHORT:
        asked = has_drafts | (end - start <= _FEW)
    return (end > start) & asked


@triton.jit(do_not_specialize=["which"])
def _by_token(
    qkv, strength, decay, rate, bias, state, read, write, query_start, kv_lens, out, which,
    heads, shared, key_dim, value_dim, stride, strength_stride, decay_stride, slot_stride, scale,
    tiled: tl.constexpr, block_key: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    column = (tl.program_id(0) * block + tl.arange(0, block))[None, :]
    head, req = tl.program_id(1), tl.program_id(2)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    # None of these waits for another.
    slot, length = tl.load(read + req).to(tl.int64), tl.load(kv_lens + req)
    rates, biases = tl.load(rate + head), tl.load(bias + head)
    if _is_asked(which, write, start, end):
        # Keys and queries are columns, as they meet the state: nothing is turned.
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
            shrink = _log_decay(tl.load(decay + token * decay_stride + head), rates, biases)
            to = tl.load(write + token).to(tl.int64)
            k *= tl.rsqrt(tl.sum(k * k, axis=0) + _EPS)[None, :]
            q *= (tl.rsqrt(tl.sum(q * q, axis=0) + _EPS) * scale)[None, :]
            now *= tl.exp(shrink)
            now += k * (beta * (v - tl.sum(k * now, axis=0)[None, :]))
            result = tl.sum(q * now, axis=0)[None, :]
            at = out + token * (heads * value_dim) + head * value_dim + column
            tl.store(at, result.to(out.dtype.element_ty), is_value)
            if to > 0:
                tl.store(state + to * slot_stride + place, now, inside)
            token += 1


@triton.jit(do_not_specialize=["which"])
def _by_chunk(
    qkv, strength, decay, rate, bias, state, read, write, query_start, kv_lens, out, which,
    heads, shared, key_dim, value_dim, stride, strength_stride, decay_stride, slot_stride, scale,
    tiled: tl.constexpr, block_key: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * block + tl.arange(0, block)
    head, req = tl.program_id(1), tl.program_id(2)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    if _is_asked(which, write, start, end):
        key = tl.arange(0, block_key)
        key_heads = heads // shared
        key_head = head % key_heads if tiled else head // shared
        is_value = column < value_dim
        inside = (key < key_dim)[:, None] & is_value[None, :]
        place = head * key_dim * value_dim + key[:, None] * value_dim + column[None, :]
        known = tl.where(tl.load(kv_lens + req) > end - start, key_dim, 0)
        slot = state + tl.load(read + req).to(tl.int64) * slot_stride
        now = tl.load(slot + place, inside & (key < known)[:, None], other=0.0)
        rates, biases = tl.load(rate + head), tl.load(bias + head)
        q_at, k_at = key_head * key_dim, (key_heads + key_head) * key_dim
        v_at = 2 * key_heads * key_dim + head * value_dim
        for first in range(start, end, chunk):
            token = (first + tl.arange(0, chunk)).to(tl.int64)
            real = token < end
            is_key = real[:, None] & (key < key_dim)[None, :]
            row = qkv + token[:, None] * stride
            k = tl.load(row + k_at + key[None, :], is_key, other=0.0)
            there = real[:, None] & is_value[None, :]
            v = tl.load(row + v_at + column[None, :], there, other=0.0).to(tl.float32)
            beta = tl.sigmoid(
                tl.load(strength + token * strength_stride + head, real, other=0.0).to(tl.float32)
            )
            shrink = _log_decay(
                tl.load(decay + token * decay_stride + head, real, other=0.0), rates, biases
            )
            # Tokens behind the end change nothing.
            beta, shrink = tl.where(real, beta, 0.0), tl.where(real, shrink, 0.0)
            line = tl.arange(0, 2 * chunk)
            again = first + line % chunk
            rows = qkv + again.to(tl.int64) * stride + tl.where(line < chunk, k_at, q_at)
            mask = (again < end)[:, None] & (key < key_dim)[None, :]
            both = tl.load(rows[:, None] + key[None, :], mask, other=0.0)
            result, now = _chunk(now, both, k, v, shrink, beta, scale, chunk)
            at = out + token[:, None] * (heads * value_dim) + head * value_dim + column[None, :]
            tl.store(at, result.to(out.dtype.element_ty), there)
        to = tl.load(write + end - 1).to(tl.int64)
        if to > 0:
            tl.store(state + to * slot_stride + place, now, inside)


@triton.jit
def _halves(x, rows: tl.constexpr, columns: tl.constexpr):
    """(the first, the last) `rows` of x [2 * rows, columns]."""
    parts = tl.reshape(x, (2, rows, columns))
    is_first = tl.arange(0, 2)[:, None, None] == 0
    first = tl.sum(tl.where(is_first, parts, 0.0), axis=0)
    return first, tl.sum(tl.where(is_first, 0.0, parts), axis=0)


@triton.jit
def _chunk(now, both, k, v, shrink, beta, scale, chunk: tl.constexpr):
    """As `kernels.ref.delta_net._chunk`; `both` are k's rows, then q's.

    Together, because most registers go to the parts of the state as operands of a product.
    Lengths are divided out of products.
    """
    is_key = tl.arange(0, 2 * chunk) < chunk
    per = (_per_length(both.to(tl.float32)) * tl.where(is_key, 1.0, scale))[:, None]
    per_k = _per_length(k.to(tl.float32))
    keys = tl.trans(k)
    of_keys, of_queries = _halves(per * _times_wide(both, now), chunk, now.shape[1])
    overlaps = per * tl.dot(both, keys) * per_k[None, :]
    influence, seen = _halves(overlaps, chunk, chunk)

    row, column = tl.arange(0, chunk)[:, None], tl.arange(0, chunk)[None, :]
    total = tl.cumsum(shrink, axis=0)
    # Above the diagonal the difference is positive and its exponential might overflow.
    between = tl.exp(tl.where(row >= column, total[:, None] - total[None, :], -float("inf")))
    decayed = tl.exp(total)[:, None]
    told = beta[:, None] * (v - decayed * of_keys)
    influence = tl.where(row > column, beta[:, None] * between * influence, 0.0)
    # The inverse of 1 + influence, row by row. Powers of influence would be fewer steps, but
    # grow to 10**4 where keys repeat, and cancel.
    inverse = tl.where(row == column, 1.0, 0.0)
    for i in range(1, chunk):
        of_row = tl.sum(tl.where(row == i, influence, 0.0), axis=0)
        less = tl.sum(tl.trans(of_row[None, :]) * inverse, axis=0)
        inverse -= tl.where(row == i, less[None, :], 0.0)
    d = tl.dot(inverse, told, input_precision="tf32x3")
    result = tl.dot(between * seen, d, decayed * of_queries, input_precision="tf32x3")
    last = tl.sum(shrink, axis=0)
    left = (tl.exp(last - total) * per_k)[:, None]
    return result, tl.exp(last) * now + _times_wide(keys, left * d)


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
    keys = (qkv.shape[1] - heads * value_dim) // 2
    # Rows behind the last request have none to write them.
    out = torch.zeros((tokens, heads * value_dim), dtype=qkv.dtype, device=qkv.device)
    by_token = tokens <= requests or capability(qkv) < 80 or qkv.dtype == torch.float32
    launches = [(by_token, _ALL)]
    if tokens > requests and capability(qkv) < 80:
        launches = [(True, _SHORT)]
        rule_of_prompts(
            qkv, strength, decay, state, slots, out, longer_than=_FEW.value, tiled=tiled
        )
    elif slots.drafts and not by_token:
        # A state behind each draft, as steps of one token leave it.
        launches = [(True, _WITH_DRAFTS), (False, _WITHOUT)]
    for by_token, which in launches:
        most = _COLUMNS if by_token else _CHUNK_COLUMNS
        block = min(most, max(16, triton.next_power_of_2(value_dim)))
        chunk = {} if by_token else {"chunk": _CHUNK}
        (_by_token if by_token else _by_chunk)[(triton.cdiv(value_dim, block), heads, requests)](
            qkv, strength, decay.x, decay.rate, decay.bias, state, slots.read, slots.write,
            slots.query_start, slots.kv_lens, out, which.value, heads, heads * key_dim // keys,
            key_dim, value_dim, qkv.stride(0), strength.stride(0), decay.x.stride(0),
            state.stride(0), key_dim**-0.5, tiled=tiled,
            block_key=max(16, triton.next_power_of_2(key_dim)), block=block, num_warps=8, **chunk,
        )  # fmt: skip
    return out
