"""Gated delta nets in Triton against their reference, with slots that start as NaN."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref import delta_net as reference
from pagoda.kernels.triton import delta_net
from pagoda.kernels.triton.target import assuming
from tests.kernels.triton.forms import TOLERANCE, spread_rows

# Tokens of each request of a step, those it had before, and how many of the last ones are drafts;
# one request has none in this step.
MIXED = ([1, 5, 0, 18, 2], [0, 7, 9, 300, 1], [0] * 5)
DECODE = ([1, 1, 0, 1], [4, 0, 3, 9], [0] * 4)
DRAFTS = ([4, 1, 20, 3, 18, 0], [9, 5, 7, 1, 30, 2], [3, 0, 0, 2, 5, 0])
FORMS = pytest.mark.parametrize("form", [MIXED, DECODE, DRAFTS], ids=["mixed", "decode", "drafts"])
FAST = {"rtol": 3e-5, "atol": 3e-5}


def step(shape, lengths, before, drafts, device, more_rows=0):
    """(cache [slots, *shape] with NaN around the states, slots), with rows that are nobody's."""
    count = len(lengths)
    size = torch.Size(shape).numel()
    num_slots = 3 * count + sum(drafts) + 1
    buffer = torch.full((num_slots, size + 5), torch.nan)
    cache = buffer[:, 3 : 3 + size].unflatten(1, shape)
    free = (torch.randperm(num_slots - 1) + 1).tolist()
    read = [free.pop() for _ in range(count)]
    # Some keep what they read from, some do not keep the state at all.
    write = [0] * (sum(lengths) + more_rows)
    end = 0
    for i, (slot, length, more) in enumerate(zip(read, lengths, drafts, strict=True)):
        end += length
        if length:
            first = (slot, free.pop(), free.pop() if more else 0)[i % 3]
            write[end - 1 - more : end] = [first, *(free.pop() for _ in range(more))]
    for slot, had in zip(read, before, strict=True):
        if had:
            cache[slot] = torch.randn(shape)
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    kv_lens = [a + b for a, b in zip(lengths, before, strict=True)]
    parts = (torch.tensor(x, dtype=torch.int32, device=device) for x in
             (read, write, starts, kv_lens))  # fmt: skip
    slots = reference.StateSlots(*parts, any(drafts))
    return buffer.to(device)[:, 3 : 3 + size].unflatten(1, shape), slots


@pytest.mark.pairwise
@FORMS
@pytest.mark.parametrize(("width", "channels"), [(1, 16), (2, 43), (4, 300)])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_causal_conv(form, width, channels, dtype, silu, device):
    cache, slots = step((width - 1, channels), *form, device, more_rows=2)
    # Two rows behind the last request become zero.
    x = spread_rows((sum(form[0]) + 2, channels), dtype, device)
    weight = torch.randn(width, channels, device=device)
    expected_cache = cache.clone()
    how = {"bias": torch.randn(channels, device=device) if width > 1 else None, "silu": silu}
    expected = reference.causal_conv(x, weight, expected_cache, slots, **how)
    found = delta_net.causal_conv(x, weight, cache, slots, **how)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
    torch.testing.assert_close(cache, expected_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.pairwise
@FORMS
@pytest.mark.parametrize(
    ("key_heads", "value_heads", "key_dim", "value_dim", "tiled"),
    [(1, 2, 37, 40, False), (2, 4, 24, 16, True), (2, 4, 8, 16, False)],
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gated_delta_rule(form, key_heads, value_heads, key_dim, value_dim, tiled, dtype, device):
    more = int(form is MIXED)
    cache, slots = step((value_heads, key_dim, value_dim), *form, device, more_rows=more)
    tokens = sum(form[0]) + more
    qkv = spread_rows((tokens, 2 * key_heads * key_dim + value_heads * value_dim), dtype, device)
    both = spread_rows((tokens, 2 * value_heads), dtype, device) * 2
    strength, x = both.chunk(2, dim=1)
    rate, bias = -torch.rand(value_heads), torch.randn(value_heads)
    decay = reference.Decay(x, rate.to(device), bias.to(device))
    expected_cache = cache.clone()
    arguments = (strength, decay, expected_cache, slots)
    expected = reference.gated_delta_rule(qkv.clone(), *arguments, tiled=tiled)
    arguments = (strength, decay, cache, slots)
    found = delta_net.gated_delta_rule(qkv.clone(), *arguments, tiled=tiled)
    limits = FAST if dtype == torch.float32 else TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, **limits)
    torch.testing.assert_close(cache, expected_cache, equal_nan=True, **FAST)


@pytest.mark.parametrize("form", [MIXED, DRAFTS], ids=["none has", "some have"])
@pytest.mark.parametrize("nobody", [0, 60], ids=["", "more requests than tokens"])
def test_captured_steps_may_have_drafts(form, nobody, device):
    """They are launched for drafts, whether there are some, and padded by requests without tokens;
    also where each of their tokens might be a request's only one."""
    shape, tokens = (2, 24, 16), sum(form[0])
    cache, slots = step(shape, *form, device)
    qkv = spread_rows((tokens, 2 * 24 + 2 * 16), torch.float16, device)
    strength, x = (spread_rows((tokens, 4), torch.float16, device) * 2).chunk(2, dim=1)
    decay = reference.Decay(x, -torch.rand(2, device=device), torch.randn(2, device=device))
    expected_cache = cache.clone()
    expected = reference.gated_delta_rule(
        qkv.clone(), strength, decay, expected_cache, slots, tiled=False
    )
    ends, nothing = slots.query_start[-1:].repeat(nobody), slots.read.new_zeros(nobody)
    padded = slots._replace(
        drafts=True,
        read=torch.cat((slots.read, nothing)),
        kv_lens=torch.cat((slots.kv_lens, nothing)),
        query_start=torch.cat((slots.query_start, ends)),
    )
    found = delta_net.gated_delta_rule(qkv, strength, decay, cache, padded, tiled=False)
    torch.testing.assert_close(found, expected, **TOLERANCE[torch.float16])
    torch.testing.assert_close(cache, expected_cache, equal_nan=True, **FAST)


LONG = ([17, 1, 150, 150, 600, 3, 0, 64, 18], [0, 4, 0, 90, 33, 0, 5, 7, 2], [0] * 8 + [2])


@pytest.mark.parametrize(("dtype", "tiled"), [(torch.float16, False), (torch.float32, True)])
def test_prompts_without_tensor_cores(dtype, tiled, device):
    """Long ones by the library's products, what is short and what has drafts token by token."""
    cache, slots = step((2, 24, 16), *LONG, device, more_rows=2)
    tokens = sum(LONG[0]) + 2
    qkv = spread_rows((tokens, 2 * 24 + 2 * 16), dtype, device)
    strength, x = (spread_rows((tokens, 4), dtype, device) * 2).chunk(2, dim=1)
    decay = reference.Decay(x, -torch.rand(2, device=device), torch.randn(2, device=device))
    expected_cache = cache.clone()
    expected = reference.gated_delta_rule(
        qkv.clone(), strength, decay, expected_cache, slots, tiled=tiled
    )
    with assuming(75):
        found = delta_net.gated_delta_rule(qkv, strength, decay, cache, slots, tiled=tiled)
    limits = FAST if dtype == torch.float32 else TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, **limits)
    torch.testing.assert_close(cache, expected_cache, equal_nan=True, **FAST)


def test_a_long_prompt_is_not_taken_token_by_token(monkeypatch, device, played_gpu):
    """Before sm_80; nor is a step of one token each the library's."""
    seen = []
    monkeypatch.setattr(delta_net, "rule_of_prompts", lambda *rest, **how: seen.append(how))
    for lengths, target in (([40, 1], 75), ([1, 1], 75), ([40, 1], 80)):
        cache, slots = step((2, 16, 16), lengths, [3, 4], [0, 0], device)
        gates = torch.zeros(sum(lengths), 2, device=device).half()
        decay = reference.Decay(gates, -torch.ones(2, device=device), gates[0].float())
        qkv = torch.zeros(sum(lengths), 96, device=device).half()
        with assuming(target):
            delta_net.gated_delta_rule(qkv, gates, decay, cache, slots, tiled=False)
    assert seen == [{"longer_than": 16, "tiled": False}]


@pytest.mark.parametrize("target", [75, 90])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_keys_that_repeat_and_extreme_gates(target, dtype, device):
    """One key over and over, strengths of 1, states that never fade or do at once."""
    cache, slots = step((2, 16, 16), [20], [3], [0], device)
    qkv = torch.randn(1, 64, device=device).to(dtype).repeat(20, 1)
    strength = torch.full((20, 2), 80.0, device=device)
    x = torch.tensor([[-80.0, 80.0]], device=device).repeat(20, 1)
    decay = reference.Decay(x, -torch.ones(2, device=device), torch.zeros(2, device=device))
    expected_cache = cache.clone()
    expected = reference.gated_delta_rule(
        qkv.clone(), strength, decay, expected_cache, slots, tiled=False
    )
    with assuming(target):
        found = delta_net.gated_delta_rule(qkv, strength, decay, cache, slots, tiled=False)
    limits = FAST if dtype == torch.float32 else TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, **limits)
    torch.testing.assert_close(cache, expected_cache, equal_nan=True, **FAST)
