"""Native element-wise kernels against torch, on odd sizes, with outputs that start as NaN."""

from collections.abc import Iterator

import gguf
import pytest
import torch
import torch.nn.functional as F

from pagoda.kernels.ref import activation, attention, kv_cache, norm, rope
from tests.kernels.caches import poisoned

native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)
from pagoda.kernels.cpu.ops import CpuOps  # noqa: E402 - behind the skip

ISAS = native.INSTRUCTION_SETS
ROWS = [0, 1, 3, 130]
CACHES = [torch.float32, torch.bfloat16, torch.float16]
Q4_0 = torch.uint8


@pytest.fixture(params=[(isa, threads) for isa in ISAS for threads in (1, 3)], ids=str)
def ops(request) -> CpuOps:
    isa, threads = request.param
    return CpuOps(native.Native(threads, isa))


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """In torch's deterministic mode `torch.empty` is full of NaN."""
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(9).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("rows", ROWS)
def test_add_to(ops, rows):
    x, residual = torch.randn(2, rows, 43)
    expected = x + residual
    assert torch.equal(ops.add_to(x, residual), expected)
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 43, 576])
def test_norm_in_place(ops, rows, size):
    whole, weight = torch.randn(rows, size + 20), torch.randn(size)
    kept, expected = whole.clone(), whole.clone()
    expected[:, 7 : 7 + size] = norm.rms_norm(whole[:, 7 : 7 + size], weight, 1e-5)
    ops.norm_in_place(whole[:, 7 : 7 + size], weight, 1e-5)
    torch.testing.assert_close(whole, expected)
    assert torch.equal(whole[:, :7], kept[:, :7])
    assert torch.equal(whole[:, 7 + size :], kept[:, 7 + size :])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 43, 576])
def test_rms_norm(ops, rows, size):
    x, residual, weight = torch.randn(rows, size), torch.randn(rows, size), torch.randn(size)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), norm.rms_norm(x, weight, 1e-5))
    expected, total = norm.add_rms_norm(x, residual, weight, 1e-5)
    out, residual = ops.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(out, expected)
    assert torch.equal(residual, total)
    added = torch.randn(size)
    expected, total = norm.add_rms_norm(x, residual, weight, 1e-5, added, -0.7)
    out, residual = ops.add_rms_norm(x, residual, weight, 1e-5, added, -0.7)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 43])
def test_keep_sum(ops, rows, size):
    x, added, kept = torch.randn(rows, size), torch.randn(rows, size), torch.full((131, size), 7.0)
    expected, place = kept.clone(), kept.data_ptr()
    activation.keep_sum(x, added, expected)
    ops.keep_sum(x, added, kept)
    assert torch.equal(kept, expected) and kept.data_ptr() == place
    assert torch.equal(kept[:rows], x + added) and (kept[rows:] == 7).all()


def test_keep_sum_needs_room_for_all_rows(ops):
    with pytest.raises(ValueError, match="kept has 2 rows; x has 3"):
        ops.keep_sum(torch.ones(3, 4), torch.ones(3, 4), torch.ones(2, 4))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 7, 16, 100, 1536])
def test_activate_and_mul(ops, rows, size):
    x = torch.randn(rows, 2 * size) * 5
    expected = F.silu(x[:, :size].double()) * x[:, size:]
    found = ops.activate_and_mul(x, "silu").double()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)
    expected = F.gelu(x[:, :size].double(), approximate="tanh") * x[:, size:]
    found = ops.activate_and_mul(x, "gelu_tanh").double()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 7, 16, 256])
def test_activate_mul(ops, rows, size):
    """Of columns of wider rows: either may lie any stride apart."""
    x, gate = torch.randn(rows, 3 * size)[:, size : 2 * size], torch.randn(rows, size + 2)[:, :size]
    expected = F.gelu(gate.double(), approximate="tanh") * x
    found = ops.activate_mul(x, gate, "gelu_tanh")
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
    expected = F.silu(gate.double()) * x
    torch.testing.assert_close(
        ops.activate_mul(x, gate, "silu").double(), expected, rtol=2e-6, atol=1e-7
    )
    assert torch.equal(ops.activate_mul(x, gate, "identity"), gate * x)
    assert torch.equal(ops.activate_mul(x, gate, "relu"), F.relu(gate) * x)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("heads", "size"), [(1, 1), (3, 7), (5, 16), (35, 256)])
def test_rms_norm_by_heads(ops, rows, heads, size):
    x, weight = torch.randn(rows, heads, size), torch.randn(size)
    found = ops.rms_norm(x, weight, 1e-5)
    assert found.shape == x.shape
    torch.testing.assert_close(found, norm.rms_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 43])
def test_soft_cap(ops, rows, size):
    x = torch.randn(rows, size) * 40
    expected = 30 * torch.tanh(x.double() / 30)
    torch.testing.assert_close(ops.soft_cap(x, 30.0).double(), expected, rtol=1e-6, atol=8e-6)
    ends = torch.tensor([[-torch.inf, -1e30, 0, 1e30, torch.inf, torch.nan]])
    expected = torch.tensor([[-30.0, -30, 0, 30, 30, torch.nan]])
    torch.testing.assert_close(ops.soft_cap(ends, 30.0), expected, equal_nan=True)


def test_silu_at_its_ends(ops):
    gate = torch.tensor([[-1e30, -torch.inf, -100, -88.5, -0.0, 0, 88.5, 100, 1e30, torch.inf]])
    gate = torch.cat((gate, torch.linspace(-120, 120, 246)[None]), dim=1)
    out = ops.activate_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1), "silu")
    expected = F.silu(gate)
    expected[0, 1] = torch.nan  # -inf * 0
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=1e-30, equal_nan=True)
    gate[0, 40] = torch.nan
    out = ops.activate_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1), "silu")
    assert out[0, 40].isnan() and out[0, 41:].isfinite().all()


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 7, 16, 100, 1536])
def test_gelu(ops, rows, size, tanh):
    x = torch.randn(rows, size) * 4
    expected = F.gelu(x.double(), approximate="tanh" if tanh else "none")
    torch.testing.assert_close(
        ops.activate(x, "gelu_tanh" if tanh else "gelu").double(), expected, rtol=2e-6, atol=2e-7
    )


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_over_its_range(ops, tanh):
    x = torch.cat((torch.linspace(-14, 14, 2801), torch.tensor([-1e30, -0.0, 0.0, 1e30])))[None]
    expected = F.gelu(x.double(), approximate="tanh" if tanh else "none")
    found = ops.activate(x, "gelu_tanh" if tanh else "gelu").double()
    torch.testing.assert_close(found, expected, rtol=3e-7, atol=4e-7)
    assert ops.activate(
        torch.tensor([[torch.nan, 1.0]]), "gelu_tanh" if tanh else "gelu"
    ).isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 43])
def test_scale(ops, rows, size):
    x = torch.randn(rows, size)
    assert torch.equal(ops.scale(x, -1.7), x * -1.7)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 43, 384])
@pytest.mark.parametrize("shift", [0, 1000])
def test_layer_norm(ops, rows, size, shift):
    """A large mean must not drown the variance."""
    x, residual = torch.randn(rows, size) + shift, torch.randn(rows, size)
    weight, bias = torch.randn(size), torch.randn(size)
    for added in (None, residual):
        total = x if added is None else x + added
        # eps of 1e-3 where one column has no variance at all.
        eps = 1e-3 if size == 1 else 1e-12
        expected = F.layer_norm(total.double(), (size,), weight.double(), bias.double(), eps)
        found = ops.layer_norm(x, weight, bias, eps, added).double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5 if not shift else 1e-3)
        reference = norm.layer_norm(x, weight, bias, eps, added).double()
        torch.testing.assert_close(reference, expected, rtol=1e-5, atol=2e-5 if not shift else 1e-3)


@pytest.mark.parametrize("dtype", [*CACHES, torch.int8, Q4_0])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary_dim"),
    [(9, 3, 64, 64), (4, 4, 80, 20), (2, 1, 6, 6), (6, 2, 128, 64), (3, 1, 34, 0)],
)
@pytest.mark.parametrize("normed", [False, True])
def test_rotary_store(ops, dtype, rows, heads, kv_heads, dim, rotary_dim, normed):
    block_size, num_blocks, width = 5, 31, (heads + 2 * kv_heads) * dim
    wide = torch.randn(rows, width + 3)
    qkv = wide[:, :width]
    q, k, v = (
        part.unflatten(1, (-1, dim)).clone()
        for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    )
    caches = [
        cache for _ in range(2) for cache in poisoned(num_blocks, kv_heads, block_size, dim, dtype)
    ]
    slots = torch.randperm(num_blocks * block_size)[:rows]
    positions = torch.randint(200, (rows,))
    cos_sin = torch.randn(200, rotary_dim) if rotary_dim else None
    weights = {"q_norm": torch.randn(dim), "k_norm": torch.randn(dim)} if normed else {}
    q_scales = torch.randn(200) if normed else None
    beyond = wide[:, width:].clone()
    ops.rotary_store(
        qkv, heads, positions, cos_sin, *caches[:2], slots, **weights, eps=1e-6, q_scales=q_scales
    )
    if normed:
        q = norm.rms_norm(q, weights["q_norm"], 1e-6)
        k = norm.rms_norm(k, weights["k_norm"], 1e-6)
    if cos_sin is not None:
        q, k = rope.rotary(q, k, positions, cos_sin)
    if q_scales is not None:
        q = q * q_scales[positions, None, None]
    got_q, got_k = qkv[:, : heads * dim], qkv[:, heads * dim : (heads + kv_heads) * dim]
    torch.testing.assert_close(got_q, q.flatten(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_k, k.flatten(1), rtol=1e-5, atol=1e-5)
    # Rounding and slots exactly: torch stores the same fp32 rows.
    attention.store_kv(got_k.unflatten(1, (-1, dim)), v, *caches[2:], slots)
    for got, expected in zip(caches[:2], caches[2:], strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide[:, width:], beyond)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("normed", [False, True])
def test_rotation_of_queries_alone(ops, rows, normed):
    """As that of a step that stores keys; rows may lie any stride apart."""
    heads, dim, eps = 3, 22, 1e-3
    wide = torch.randn(rows, heads * dim + 5)
    q, beyond = wide[:, : heads * dim], wide[:, heads * dim :].clone()
    positions, cos_sin = torch.randint(50, (rows,)), torch.randn(50, 16) if normed else None
    norm_of_q = (torch.randn(dim), eps) if normed else None
    scales = torch.randn(50) if normed else None
    expected = q.unflatten(1, (heads, dim)).clone()
    if normed:
        expected = norm.rms_norm(expected, *norm_of_q)
        expected, _ = rope.rotary(expected, expected, positions, cos_sin)
        expected = expected * scales[positions, None, None]
    reference = attention.rotate(q.clone(), positions, cos_sin, dim, norm_of_q, scales)
    found = ops.rotate(q, positions, cos_sin, dim, norm_of_q, scales)
    for got in (reference, found):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(wide[:, heads * dim :], beyond)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("dim", "rotary_dim"), [(6, 6), (22, 4), (64, 64)])
def test_rotary_in_place(ops, rows, dim, rotary_dim):
    """Some heads of one projection turn, between others that stay."""
    qkv = torch.randn(rows, 3, 5, dim)
    positions, cos_sin = torch.randint(0, 40, (rows,)), torch.randn(40, rotary_dim)
    expected = qkv.clone()
    q, k = rope.rotary(qkv[:, 0, 1:4], qkv[:, 1], positions, cos_sin)
    expected[:, 0, 1:4], expected[:, 1] = q, k
    ops.rotary(qkv[:, 0, 1:4], qkv[:, 1], positions, cos_sin)
    torch.testing.assert_close(qkv, expected)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [*CACHES, torch.int8, Q4_0])
def test_rotary_store_of_normalized_values(ops, dtype, shared):
    """With `shared`, of values that are keys as they came."""
    rows, heads, kv_heads, dim, eps = 7, 4, 2, 22, 1e-3
    qkv = torch.randn(rows, (heads + (1 if shared else 2) * kv_heads) * dim)
    weights, cos_sin = (torch.randn(dim), torch.randn(dim)), torch.randn(50, 16)
    positions, slots = torch.randint(50, (rows,)), torch.randperm(15)[:rows]
    found, expected = poisoned(3, kv_heads, 5, dim, dtype), poisoned(3, kv_heads, 5, dim, dtype)
    q, k = qkv.unflatten(1, (-1, dim)).split((heads, qkv.shape[1] // dim - heads), dim=1)
    k, v = k[:, :kv_heads], k[:, -kv_heads:]
    v = v / (v.double().square().mean(-1, keepdim=True) + eps).sqrt().float()
    k, q = (norm.rms_norm(x, w, eps) for x, w in zip((k, q), weights[::-1], strict=True))
    q, k = rope.rotary(q, k, positions, cos_sin)
    attention.store_kv(k, v, *expected, slots)
    reference = poisoned(3, kv_heads, 5, dim, dtype)
    turned = attention.rotary_store(
        qkv, positions, cos_sin, *reference, slots, (*weights, eps, True), None, shared
    )
    ops.rotary_store(
        qkv, heads, positions, cos_sin, *found, slots, q_norm=weights[0], k_norm=weights[1],
        eps=eps, norm_values=True, values_are_keys=shared,
    )  # fmt: skip
    for out in (turned.flatten(1), qkv[:, : heads * dim]):
        torch.testing.assert_close(out, q.flatten(1), rtol=1e-5, atol=1e-5)
    # One step of the cache's type: sums of squares differ in their last bits.
    apart = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype)
    for caches_ in (found, reference):
        for got, want in zip(caches_, expected, strict=True):
            got, want = got.float(), want.float()
            if dtype == Q4_0:
                assert (got == want).float().mean() > 0.8
            elif dtype == torch.int8:  # scales lie between rows of numbers
                assert ((got - want).abs() <= 1).float().mean() > 0.8
            else:
                torch.testing.assert_close(got, want, rtol=apart, atol=apart, equal_nan=True)


def caches(blocks: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """K and V of one head in blocks of one token."""
    return torch.zeros(2, blocks, 1, 1, kv_cache.row_elements(dim, dtype), dtype=dtype)


@pytest.mark.parametrize("dtype", CACHES)
def test_rounding_to_the_cache(ops, dtype):
    """Ties, subnormals, overflow, infinities and NaN round as torch rounds them."""
    bits = torch.randint(-(2**31), 2**31, (4000,), dtype=torch.int32)
    halves = torch.arange(0, 1 << 16, 7, dtype=torch.int32) << 16
    special = torch.tensor([65504, 65519.9, 65520, 1e-8, 2**-25, 2**-24 * 1.5, 6.1e-5, 3.4e38])
    values = torch.cat((bits, halves, halves | 0x8000, halves | 0x1000)).view(torch.float32)
    values = torch.cat((values, special, -special, torch.tensor([torch.inf, torch.nan])))
    values = F.pad(values, (0, -len(values) % 22)).reshape(-1, 22)
    rows = len(values)
    qkv = torch.cat((values, values, values), dim=1)
    k_cache, v_cache = caches(rows, 22, dtype)
    ops.rotary_store(qkv, 1, None, None, k_cache, v_cache, torch.arange(rows))
    for cache in (k_cache[:, 0, 0], v_cache[:, 0, 0]):
        torch.testing.assert_close(cache, values.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_rounding_to_an_int8_cache(ops):
    """Ties, zeros and tiny rows round as torch rounds them; infinity and NaN are not lost."""
    ties = torch.tensor([[127.0, 0.5, 1.5, -2.5, -127, 126.5, 0, -0.0] * 5]) * 2.0**-9
    tiny = torch.full((1, 40), 1e-38)
    values = torch.cat((ties, tiny, torch.zeros(1, 40), torch.randn(300, 40) * 9))
    rows = len(values)
    found, expected = caches(rows, 40, torch.int8), caches(rows, 40, torch.int8)
    qkv = torch.cat((values, values, values), dim=1)
    ops.rotary_store(qkv, 1, None, None, *found, torch.arange(rows))
    attention.store_kv(values[:, None], values[:, None], *expected, torch.arange(rows))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    for column in (0, 17, 39):
        for bad in (torch.inf, -torch.inf, torch.nan):
            row = torch.ones(1, 120)
            row[0, 40 + column] = row[0, 80 + column] = bad
            k_cache, v_cache = caches(1, 40, torch.int8)
            ops.rotary_store(row, 1, None, None, k_cache, v_cache, torch.zeros(1).long())
            for rows in (k_cache, v_cache):
                assert kv_cache.decode(rows, torch.float32).isnan().all()


def test_rounding_to_a_q4_0_cache(ops):
    """As the gguf package rounds: ties, both signs of the largest magnitude, zeros, tiny blocks;
    infinity and NaN are not lost."""
    signs = torch.tensor([[2.0, -2.0] * 16 + [-3.0, 3.0] * 16])
    ties = torch.tensor([[-8.0, -0.5, 0.5, 1.5, -2.5, 8, 7.5, -0.0] * 8])
    tiny = torch.full((1, 64), 1e-30)
    values = torch.cat((signs, ties, tiny, torch.zeros(1, 64), torch.randn(3000, 64) * 9))
    rows = len(values)
    caches_ = caches(rows, 64, Q4_0)
    ops.rotary_store(
        torch.cat((values, values, values), dim=1), 1, None, None, *caches_, torch.arange(rows)
    )
    kind = gguf.GGMLQuantizationType.Q4_0
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(values.numpy(), kind), kind))
    for cache in caches_:
        assert torch.equal(kv_cache.decode(cache, torch.float32).view(rows, 64), expected)
    for bad in (torch.inf, -torch.inf, torch.nan):
        row = torch.ones(1, 192)
        row[0, 64 + 5] = row[0, 128 + 40] = bad
        k_cache, v_cache = caches(1, 64, Q4_0)
        ops.rotary_store(row, 1, None, None, k_cache, v_cache, torch.zeros(1).long())
        for stored, block in ((k_cache, 0), (v_cache, 1)):
            read = kv_cache.decode(stored, torch.float32).view(2, 32)
            assert read[block].isnan().all() and read[1 - block].isfinite().all()


@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 24, 43, 576])
def test_embed(ops, dtype, rows, size):
    table = torch.randn(50, size).to(dtype)
    ids = torch.randint(50, (rows,))
    assert torch.equal(ops.take_rows(table, ids), table[ids].float())


def test_fp16_widens_exactly(ops):
    table = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    out = ops.take_rows(table.reshape(64, 1024), torch.arange(64))
    torch.testing.assert_close(out, table.reshape(64, 1024).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 15, 2049, 49152])
def test_argmax(ops, rows, size):
    if rows * size > 1 << 21:
        rows = 20
    logits = torch.randn(rows, size)
    if size > 15:
        logits = (logits * 4).round()  # many equals: the lowest id counts
    values, ids = ops.first_max(logits)
    expected = logits.max(dim=1)
    assert torch.equal(values, expected.values)
    first = (logits == expected.values[:, None]).int().argmax(dim=1)
    assert torch.equal(ids, first)


@pytest.mark.parametrize("rows", [1, 2, 70])
def test_argmax_of_rows_without_a_largest(ops, rows):
    size = 20001
    logits = torch.full((rows, size), -torch.inf)
    values, ids = ops.first_max(logits)
    assert values.isneginf().all() and (ids == 0).all()
    for at in (0, 8200, 10001, size - 1):
        logits = torch.randn(rows, size)
        logits[-1, at] = torch.nan
        logits[-1, 15000] = torch.inf
        values, _ = ops.first_max(logits)
        assert values[-1].isnan()
        assert torch.equal(values[:-1], logits[:-1].amax(dim=1))


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (40, 40), (1000, 64), (49152, 50)])
def test_top_k(ops, rows, size, count):
    logits = (torch.randn(rows, size) * 30).round()
    values, ids = ops.top_tokens(logits, count)
    expected = logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(ids, expected.indices[:, :count])


def test_top_k_of_few(ops):
    logits = torch.full((1, 100), torch.nan)
    logits[0, [70, 3, 50]] = torch.tensor([1.0, -torch.inf, 2.0])
    values, ids = ops.top_tokens(logits, 5)
    assert ids.tolist() == [[50, 70, 3, -1, -1]]
    assert values.tolist() == [[2.0, 1.0] + [-torch.inf] * 3]


def test_huge_pages_keep_what_is_written():
    data = torch.arange(3 << 20, dtype=torch.int32)
    answer = native.use_huge_pages(data.data_ptr(), data.nbytes)
    assert isinstance(answer, bool)
    assert torch.equal(data, torch.arange(3 << 20, dtype=torch.int32))
    assert not native.use_huge_pages(data.data_ptr(), 100)  # no whole page


def test_wrong_arguments_are_named():
    ops = CpuOps(native.Native(1))
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match="x is not contiguous"):
        ops.activate_and_mul(x.t(), "silu")
    with pytest.raises(ValueError, match="weight has shape"):
        ops.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="logits is torch.float64"):
        ops.first_max(x.double())
    with pytest.raises(ValueError, match="x is torch.int32"):
        ops.take_rows(x.int(), torch.zeros(1, dtype=torch.int64))
    k_cache, v_cache = torch.zeros(1, 1, 2, 4).transpose(2, 3), torch.zeros(1, 1, 4, 2)
    slots = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="qkv has shape"):
        ops.rotary_store(x, 1, None, None, k_cache, v_cache, slots)
    with pytest.raises(ValueError, match="k_cache must lie dimension by dimension"):
        ops.rotary_store(x[:, :6], 1, None, None, v_cache, v_cache, slots)
