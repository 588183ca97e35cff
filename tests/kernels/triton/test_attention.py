"""Attention in Triton against the torch reference, on caches whose unused places are NaN."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref.encoder import encoder_attention as ref_encoder_attention
from pagoda.kernels.ref.kv_cache import FP8, KVScales
from pagoda.kernels.triton import attention
from pagoda.kernels.triton.arrivals import arrivals
from pagoda.kernels.triton.target import assuming
from tests.kernels.triton.paged import MIXES, Case

HALVES = (torch.float16, torch.bfloat16)
# Of fp32 sums in another order; of weights rounded to half precision.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def check(case: Case) -> torch.Tensor:
    out = case.run(attention.paged_attention)
    tolerance = TOLERANCE[case.q_dtype]
    torch.testing.assert_close(out.float(), case.expected(), rtol=tolerance, atol=tolerance)
    return out


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 1, 37])
def test_equals_reference(device, mix, window):
    check(Case(MIXES[mix], device=device, how={"window": window}))


@pytest.mark.parametrize(
    ("q_dtype", "dtype"),
    [
        *[(torch.float32, dtype) for dtype in (torch.bfloat16, torch.float16, torch.int8, *FP8)],
        *[(half, dtype) for half in HALVES for dtype in (half, torch.int8, *FP8)],
    ],
)
def test_caches(device, dtype, q_dtype):
    check(Case(MIXES["mixed"], dtype=dtype, q_dtype=q_dtype, device=device, how={"window": 37}))


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(4, 4, 8), (3, 1, 64), (5, 1, 80), (14, 2, 96), (71, 1, 64), (2, 1, 256), (2, 1, 512)],
)
def test_head_layouts(device, dtype, q_dtype, heads, kv_heads, head_dim):
    stored = q_dtype if dtype.is_floating_point else dtype
    requests = [(1, 40), (5, 20)]
    check(Case(requests, heads, kv_heads, head_dim, 16, stored, q_dtype, device))


@pytest.mark.parametrize(
    ("target", "q_dtype", "how"),
    [
        (75, torch.float16, {"window": 37}),
        (80, torch.bfloat16, {"sinks": torch.arange(6.0) - 3}),
        (89, torch.float16, {}),
        (90, torch.bfloat16, {"window": 37, "sinks": torch.arange(6.0) - 3}),
        (90, torch.float32, {}),
    ],
)
def test_scales_of_8_bit_floats(device, small_splits, how, target, q_dtype):
    """One KV head is stored in other units than the other, by arithmetic and by conversion."""
    case = Case(LONG, dtype=torch.float8_e4m3fn, q_dtype=q_dtype, device=device, how=how)
    expected = case.expected()
    on_device = (torch.tensor([2.0**-10, 3.0]), torch.tensor([2.0**8, 0.75]))
    case.how = {**how, "kv_scales": KVScales(*(scales.to(device) for scales in on_device))}
    group = case.heads // case.kv_heads
    k_scales, v_scales = (scales.repeat_interleave(group)[:, None] for scales in on_device)
    plain = case.q
    case.q = (plain.float() / k_scales).to(q_dtype)
    with assuming(target):
        out = case.run(attention.paged_attention)
    tolerance = 2 * TOLERANCE[q_dtype]
    torch.testing.assert_close(out.float() / v_scales, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, *FP8])
def test_without_tensor_cores(device, dtype):
    with assuming(75):
        check(Case(MIXES["mixed"], head_dim=96, dtype=dtype, q_dtype=torch.float16, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("block_size", [1, 4, 100])
def test_block_sizes(device, dtype, block_size):
    requests = [(1, 130), (3, 40)]
    how = {"window": 90}
    check(Case(requests, block_size=block_size, dtype=dtype, device=device, how=how))


@pytest.mark.parametrize("mix", ["first token", "mixed", "idle requests"])
def test_sinks(device, mix):
    """Some far below all scores, some far above."""
    sinks = torch.tensor([-200.0, -1.0, 0.0, 3.0, 20.0, 200.0])
    check(Case(MIXES[mix], device=device, how={"sinks": sinks, "window": 37}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("mix", ["first token", "mixed"])
def test_capped_logits(device, mix, dtype):
    check(Case(MIXES[mix], dtype=dtype, device=device, how={"cap": 1.5, "window": 37}))


def test_rows_behind_all_requests_are_zero(device):
    for padding in (1, 7, 40):
        out = check(Case(MIXES["idle requests"], device=device, padding=padding))
        assert out[-padding:].eq(0).all()


LONG = [(1, 200), (1, 20), (3, 129), (1, 128)]


@pytest.fixture
def small_splits(monkeypatch):
    monkeypatch.setattr(attention, "_MIN_SPLIT", 64)


@pytest.mark.parametrize("how", [{}, {"window": 150}, {"sinks": torch.arange(6.0) * 4 - 8}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_splits(device, small_splits, how, dtype):
    check(Case(LONG, dtype=dtype, device=device, padding=2, how=how))


@pytest.mark.parametrize("padding", [0, 3])
def test_splits_among_prompts(device, small_splits, padding):
    """Results of splits take no room for the tokens of prompts."""
    requests = [(1, 200), (40, 90), (0, 3), (3, 129), (17, 150), (16, 200), (1, 20)]
    check(Case(requests, device=device, padding=padding))


def test_growing_splits(device, small_splits, monkeypatch):
    monkeypatch.setattr(attention, "_MAX_SPLITS", 2)
    check(Case(LONG, device=device))


def test_neighbours_and_processors_change_no_bit(device, small_splits, monkeypatch):
    case = Case([(1, 200), (1, 20), (1, 129)], device=device)
    together = case.run(attention.paged_attention)
    monkeypatch.setattr(attention, "processors", lambda x: 1)
    assert torch.equal(case.run(attention.paged_attention), together)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    for row in range(3):
        one = slice(row, row + 1)
        per_request = (case.q[one], case.table[one], starts, case.lens[one])
        q, table, begin, lens = (x.to(device) for x in per_request)
        caches = (case.k_cache.to(device), case.v_cache.to(device))
        alone = attention.paged_attention(q, *caches, table, begin, lens, scale=case.head_dim**-0.5)
        assert torch.equal(alone.cpu(), together[one])


def test_padding_of_a_mixed_step_changes_no_bit(device, small_splits):
    """Requests without tokens, and tokens of nobody, as captured steps have them."""
    case = Case([(1, 200), (40, 90), (3, 129), (1, 20)], device=device)
    alone = case.run(attention.paged_attention)
    starts, lens, table, q = case.starts, case.lens, case.table, case.q
    case.starts = torch.cat((starts, starts[-1:].repeat(5)))
    case.lens = torch.cat((lens, lens.new_zeros(5)))
    case.table = torch.cat((table, torch.zeros_like(table[:1]).repeat(5, 1)))
    case.q = torch.cat((q, torch.randn_like(q[:1]).repeat(19, 1, 1)))
    padded = case.run(attention.paged_attention)
    assert torch.equal(padded[: len(q)], alone) and not padded[len(q) :].any()


def test_the_last_program_merges_and_the_next_launch_begins_anew(device, small_splits):
    case = Case(LONG, device=device)
    first = case.run(attention.paged_attention)
    assert torch.equal(case.run(attention.paged_attention), first)
    tiles = (len(case.q) // (16 // 3) + len(LONG) + 1) * case.kv_heads
    assert not arrivals(torch.device(device), tiles).any()


@pytest.mark.parametrize("dtype", HALVES)
def test_blocks_of_a_gpu(device, dtype):
    """In which all keys of a tile are: longer contexts, windows that begin inside of a tile."""
    for window in (None, 70):
        how = {"window": window}
        requests = [(1, 300), (70, 130), (1, 64), (2, 1)]
        requests = [(min(new, kv), kv) for new, kv in requests]
        check(Case(requests, block_size=64, dtype=dtype, q_dtype=dtype, device=device, how=how))


def dense(q, k_cache, v_cache, table, starts, lens, *, scale, window, chunked, sees_until):
    """Of fp32: every logit of a request at once."""
    out = torch.zeros_like(q)
    group = q.shape[1] // v_cache.shape[1]
    for req, kv_len in enumerate(lens.tolist()):
        begin, end = starts[req], starts[req + 1]
        blocks = table[req].long()
        k = k_cache[blocks].transpose(1, 2).flatten(0, 1)[:kv_len]
        v = v_cache[blocks].transpose(1, 2).flatten(0, 1)[:kv_len].nan_to_num()
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        query = torch.arange(kv_len - int(end - begin), kv_len)[:, None]
        key = torch.arange(kv_len)[None]
        first = query - query % window if chunked else query - window + 1
        behind = query + 1 if sees_until is None else sees_until[begin:end, None]
        hidden = (key < first) | (key >= behind)
        logits = torch.einsum("qhd,khd->hqk", q[begin:end], k) * scale
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, v)
    return out


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("image", [False, True])
def test_chunks_and_images(device, chunked, image):
    """An image's tokens see each other: two of them here, in one request."""
    seen = [*[70], *[4, 4, 4, 4, 5, 17, *[17] * 11], *[40, 40, 38, 39, 40]]
    how = {"window": 8, "chunked": chunked}
    how["sees_until"] = torch.tensor(seen, dtype=torch.int32) if image else None
    case = Case([(1, 70), (17, 17), (5, 40)], device=device, how=how)
    out = case.run(attention.paged_attention)
    torch.testing.assert_close(out, case.expected(dense), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dim", [6, 32, 72])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_encoder_attention(device, dtype, dim, window):
    generator = torch.Generator().manual_seed(1)
    starts = torch.tensor([0, 3, 3, 40, 41], dtype=torch.int32)
    qkv = torch.randn(44, 3, 2, dim, generator=generator).to(dtype)
    q, k, v = qkv.unbind(1)
    how = {"scale": 0.3, "window": window}
    expected = ref_encoder_attention(q.float(), k.float(), v.float(), starts, **how)
    out = attention.encoder_attention(
        q.to(device), k.to(device), v.to(device), starts.to(device), **how
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.cpu().float(), expected, rtol=tolerance, atol=tolerance)
    assert out.is_contiguous()
