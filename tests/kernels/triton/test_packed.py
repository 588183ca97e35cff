"""Quantized weights in Triton against their decoder, itself tested against other programs', and
products in fp64."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.base.errors import CheckpointError
from pagoda.kernels import ops
from pagoda.kernels.ref.dequant.formats import dequantize
from pagoda.kernels.triton.products import gemm, scaled
from pagoda.kernels.triton.products.arranged import arranged
from pagoda.kernels.triton.products.layouts import STORAGES
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import assuming
from pagoda.quant.base import ShardSource
from pagoda.quant.packed import PackedLinear
from pagoda.weights.formats import FORMATS
from tests.kernels.triton.quantized import ALL, packed, random_raw

# Of more than a tile; the interpreter takes a tenth of a second for 256 columns of one.
ROWS = 18
ODD_BYTES = bytes.fromhex("00010f107b7c7e7f8081aac3e0f0fcfeff3c")
IN_PAIRS = ["INT4", "UINT4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "FP4"]
BLOCKS_OF_32 = [name for name in ALL if FORMATS[name].block_elements == 32]


def decoded_by_kernel(matrix: GpuMatrix, device: str) -> torch.Tensor:
    index = torch.randperm(matrix.rows, device=device)
    rows = torch.empty(matrix.rows, matrix.columns, device=device)
    rows[index] = gemm.rows(index, matrix, torch.float32)
    return rows.cpu()


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("storage", "columns"),
    [*((name, 512) for name in ALL), *((name, c) for name in BLOCKS_OF_32 for c in (96, 192))],
)
def test_nothing_is_lost(storage, columns, device):
    """Loaded in pieces, as shards and ranks come, from a part of wider rows."""
    wide = random_raw(storage, ROWS, 2 * columns)
    raw = wide[:, wide.shape[1] // 2 :]
    matrix = GpuMatrix(storage, ROWS, columns, device)
    for start, end in ((11, 18), (0, 3), (3, 11), (5, 5)):
        matrix.load(start, raw[start:end])
    assert_equal(decoded_by_kernel(matrix, device), dequantize(raw, storage))
    # K-quants' scales of six bits take eight; odd rows of nibbles are filled up.
    assert matrix.nbytes <= raw.numel() * (1.05 if columns % 64 == 0 and "5" not in storage else 2)


@pytest.mark.parametrize("storage", ALL)
def test_odd_bytes(storage, device):
    """Blocks of one byte repeated: zeros, infinities, NaN, subnormals and all extremes."""
    stored = FORMATS[storage]
    odd = torch.tensor(list(ODD_BYTES), dtype=torch.uint8)
    raw = odd[:, None].repeat(1, stored.block_bytes)
    matrix = packed(storage, raw, stored.block_elements, device)
    assert_equal(decoded_by_kernel(matrix, device), dequantize(raw, storage))


def test_fp8_where_the_gpu_does_not_convert_it(device):
    odd = torch.tensor(list(ODD_BYTES), dtype=torch.uint8)
    matrix = packed("FP8", odd[:, None].repeat(1, 36), 32, device)
    with assuming(80):
        before = decoded_by_kernel(matrix, device)
    assert_equal(before, decoded_by_kernel(matrix, device))
    assert_equal(before, dequantize(odd[:, None].repeat(1, 36), "FP8"))


@pytest.mark.parametrize("storage", ["INT4", "UINT4", "FP8", "Q8_0"])
@pytest.mark.parametrize(("alike", "group"), [(4, 128), (16, 512), (3, 32)])
def test_groups_that_share_scales_become_one(storage, alike, group, device):
    raw = random_raw(storage, 9, 512).view(9, 16, -1)
    scale = {"UINT4": 5, "Q8_0": 2}.get(storage, 4)
    for block in range(16):
        raw[:, block, :scale] = raw[:, block - block % alike, :scale]
    raw = raw.flatten(1)
    matrix = packed(storage, raw, 512, device)
    before = matrix.nbytes
    matrix.settle()
    assert matrix.layout.group == group
    assert (matrix.nbytes < before) == (group > 32)
    assert_equal(decoded_by_kernel(matrix, device), dequantize(raw, storage))
    x = torch.randn(3, 512, device=device).half()
    check(gemm.matmul(x, [matrix]), x, dequantize(raw, storage, torch.float16))


def check(found, x, weight, bias=None):
    """Equal to the product but for the rounding of fp32 sums and of the result; the interpreter
    cuts off what bfloat16 has no bits for, so weights may differ by one."""
    wide, w = x.cpu().double(), weight.cpu().double()
    added = 0 if bias is None else bias.cpu().double()
    expected, terms = wide @ w.t() + added, wide.abs() @ w.abs().t()
    one_bit = 2.0**-8 if weight.dtype == torch.bfloat16 else 4e-6
    bound = one_bit * terms + torch.finfo(found.dtype).eps * expected.abs() + 1e-6
    assert not found.isnan().any()
    assert ((found.cpu().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize(
    ("storage", "tokens", "dtype"),
    [
        *((name, 1, torch.float32) for name in ALL),
        *((name, 3, torch.float16) for name in ALL),
        ("Q6_K", 1, torch.bfloat16),
        ("INT4", 19, torch.bfloat16),
    ],
)
def test_product(storage, tokens, dtype, device):
    raw = random_raw(storage, ROWS, 256)
    x = torch.randn(tokens, 256, device=device).to(dtype)
    # One token's weights are not rounded.
    weight = dequantize(raw, storage, torch.float32 if tokens == 1 else dtype)
    check(gemm.matmul(x, [packed(storage, raw, 256, device)]), x, weight)


@pytest.mark.pairwise
@pytest.mark.parametrize("storage", ["Q4_0", "Q8_0", "MXFP4", "Q5_1"])
@pytest.mark.parametrize("columns", [32, 160, 416])
@pytest.mark.parametrize("tokens", [1, 5])
def test_columns_and_rows_that_lie_apart(storage, columns, tokens, device):
    raw = random_raw(storage, 5, columns)
    x = torch.full((tokens, columns + 8), torch.nan, device=device, dtype=torch.float16)
    x = x[:, :columns].copy_(torch.randn(tokens, columns))
    weight = dequantize(raw, storage, torch.float32 if tokens == 1 else torch.float16)
    check(gemm.matmul(x, [packed(storage, raw, columns, device)]), x, weight)


@pytest.mark.parametrize("target", [75, 90])
@pytest.mark.parametrize("tokens", [0, 1, 3, 33, 130])
def test_every_form(target, tokens, device, monkeypatch, played_gpu):
    """Matrices side by side, one of them plain, with a bias and sums that leave in fp32."""
    monkeypatch.setattr(gemm, "MOST_FUSED", 100)
    monkeypatch.setattr(gemm, "_DECODED_AT_ONCE", 256 * 10)
    dtype = torch.float16
    raws = [("Q4_K", random_raw("Q4_K", 18, 256)), ("Q6_K", random_raw("Q6_K", 9, 256))]
    matrices = [packed(name, raw, 256, device) for name, raw in raws]
    plain = torch.randn(5, 256).to(dtype)
    matrices.insert(1, GpuMatrix("F16", 5, 256, device))
    matrices[1].load(0, plain.view(torch.uint8))
    x, bias = torch.randn(tokens, 256, device=device).to(dtype), torch.randn(32, device=device)
    alone = tokens <= (8 if target == 75 else 1)
    weights = [dequantize(raw, name, torch.float32 if alone else dtype) for name, raw in raws]
    weight = torch.cat((weights[0], plain.float(), weights[1]))
    with assuming(target):
        out = gemm.matmul(x, matrices, bias.half(), torch.float32)
        assert out.shape == (tokens, 32) and out.dtype == torch.float32
        check(out, x, weight, bias.half())
        check(gemm.matmul(x, matrices, bias.half()), x, weight, bias.half())


def test_repeats(device):
    """Columns split over programs are added in one order."""
    raw = random_raw("Q4_K", ROWS, 1280)
    matrix = packed("Q4_K", raw, 1280, device)
    x, bias = torch.randn(2, 1280, device=device).half(), torch.randn(ROWS, device=device).half()
    for tokens, dtype in ((1, torch.float32), (2, torch.float16)):
        first = gemm.matmul(x[:tokens], [matrix], bias)
        check(first, x[:tokens], dequantize(raw, "Q4_K", dtype), bias)
        assert torch.equal(gemm.matmul(x[:tokens], [matrix], bias), first)


def test_weights_beyond_float16_are_refused(device):
    weight = torch.tensor([[1.0, 7e4]])
    matrix = GpuMatrix("BF16", 1, 2, device)
    matrix.load(0, weight.bfloat16().view(torch.uint8))
    index = torch.tensor([0], device=device)
    assert_equal(gemm.rows(index, matrix, torch.float32).cpu(), weight.bfloat16().float())
    with pytest.raises(CheckpointError, match="65504.*--dtype"):
        GpuMatrix("F16", 1, 2, device).load(0, weight.half().view(torch.uint8))


def test_linear_layer_of_a_gpu(device, monkeypatch):
    """As a GPU's layers hold shards; what has no kernels becomes the type of activations."""
    monkeypatch.setattr(ops, "packed_storages", lambda _: STORAGES)
    monkeypatch.setattr(
        ops, "packed_matrix",
        lambda name, rows, columns, _: GpuMatrix(name, rows, columns, device),
    )  # fmt: skip
    layer, dtype = PackedLinear(), torch.float16
    kinds, sizes = ("Q4_K", "Q4_K", "IQ3_S", "INT4"), (24, 9, 5, 8)
    layer.create(sizes, kinds, 256, dtype, "cuda")
    weights = []
    for shard, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        raw = random_raw(kind, size, 256, seed=shard)
        layer.load(shard, ShardSource(kind, size, 256, lambda raw=raw: raw))
        weights.append(dequantize(raw, kind, dtype))
    layer.finalize()
    x, bias = torch.randn(6, 256, device=device).to(dtype), torch.randn(46, device=device).half()
    check(layer.apply(x, bias), x, torch.cat(weights), bias)
    table = PackedLinear()
    table.create((9,), ("Q6_K",), 256, dtype, "cuda")
    raw = random_raw("Q6_K", 9, 256)
    table.load(0, ShardSource("Q6_K", 9, 256, lambda: raw))
    table.finalize()
    index = torch.tensor([8, 0, 3, 3], device=device)
    assert_equal(table.rows(index).cpu(), dequantize(raw, "Q6_K", dtype)[index.cpu()])


@pytest.mark.parametrize("columns", [96, 320, 2176])
def test_rows_rounded_to_fp8(columns, device):
    """Scaled so that a row's largest is the largest of E4M3, in the order of the weights."""
    x = torch.randn(7, columns, device=device).bfloat16()
    x[3], x[4, 5] = 0, 1e30
    codes, scales = scaled.quantized(x)
    largest = x.float().abs().amax(1, keepdim=True)
    expected = torch.where(largest == 0, 1.0, largest / 448)
    torch.testing.assert_close(scales, expected)
    in_order = (x.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    apart = in_order.view(7, -1, 4, 4).transpose(2, 3).reshape(7, columns)
    assert torch.equal(codes.view(torch.uint8) & 127, apart & 127)  # but for the sign of zero


@pytest.mark.parametrize(("tokens", "columns"), [(7, 384), (4, 1280)])
def test_groups_rounded_to_fp8(tokens, columns, device):
    """Each as a row of its own; tokens are filled up to fours."""
    x = torch.randn(tokens, columns, device=device).bfloat16()
    x[3, 130:300] = 0
    codes, scales = scaled.quantized_groups(x)
    groups = columns // 128
    assert codes.shape == (-(-tokens // 4) * 4, columns) and scales.stride(0) == 1
    apart = [scaled.quantized(part) for part in x.split(128, dim=1)]
    assert torch.equal(scales[:tokens], torch.cat([own for _, own in apart], 1))
    expected = torch.cat([part.view(torch.uint8) for part, _ in apart], 1)
    assert torch.equal(codes.view(torch.uint8)[:tokens], expected)
    assert scales.shape == (len(codes), groups)


def _played_scaled_mm(a, b, *, scale_a, scale_b, bias, out_dtype):
    """Scales of groups as cuBLAS takes them on sm_90; torch checks shapes by its own rules."""
    meta = [tensor.to("meta") for tensor in (a, b, scale_a, scale_b)]
    torch_scaled_mm(*meta[:2], scale_a=meta[2], scale_b=meta[3], out_dtype=out_dtype)
    assert len(a) % 4 == 0 and scale_a.stride() == (1, len(a)) and scale_b.is_contiguous()
    spread = scale_a.repeat_interleave(128, 1), scale_b.repeat_interleave(128, 0)
    out = (a.float() * spread[0]) @ (b.float() * spread[1])
    return (out if bias is None else out + bias.float()).to(out_dtype)


torch_scaled_mm = torch._scaled_mm


def test_products_with_scales_of_blocks(device, monkeypatch, played_gpu):
    """Weights in blocks of 128 x 128, as most fp8 checkpoints have them."""
    raw = random_raw("FP8", 160, 512).view(160, 16, 36)
    raw[:, :, :4] = raw[:, ::4, :4].repeat_interleave(4, 1)
    for rows in (slice(0, 128), slice(128, 160)):
        raw[rows, :, :4] = raw[rows.start, :, :4]
    raw = raw.flatten(1)
    matrix = packed("FP8", raw, 512, device)
    x, bias = torch.randn(6, 512, device=device).bfloat16(), torch.randn(160, device=device)
    with assuming(90):
        assert "scales of 32 columns" in scaled.declines(x, matrix, torch.bfloat16)
        matrix.settle()
        assert matrix.layout.group == 128
        monkeypatch.setattr(torch, "_scaled_mm", _played_scaled_mm)
        scaled._works.cache_clear()
        assert scaled.declines(x, matrix, torch.bfloat16) is None
        out = gemm.matmul(x, [matrix], bias.bfloat16())
    scaled._works.cache_clear()
    for target in (89, 100, 120):
        with assuming(target):
            assert "for sm_90" in scaled.declines(x, matrix, torch.bfloat16)
    codes, scales = (part[:6] for part in scaled.quantized_groups(x))
    seen = codes.float().view(6, -1, 4, 4).transpose(2, 3).reshape(6, 512)
    seen *= scales.repeat_interleave(128, 1)
    expected = seen @ dequantize(raw, "FP8").to(device).t() + bias.bfloat16().float()
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_library_that_takes_scales_otherwise_is_not_used(device, monkeypatch):
    def by_rows(a, b, *, scale_a, scale_b, bias, out_dtype):
        scale_a, scale_b = scale_a[:, :1].repeat(1, 2), scale_b[:1].repeat(2, 1)
        return _played_scaled_mm(
            a, b, scale_a=scale_a.t().contiguous().t(), scale_b=scale_b, bias=bias,
            out_dtype=out_dtype,
        )  # fmt: skip

    scaled._works.cache_clear()
    monkeypatch.setattr(torch, "_scaled_mm", by_rows)
    assert not scaled._works(torch.device(device), True)
    scaled._works.cache_clear()


def test_scaled_products(device, played_gpu):
    raw = random_raw("FP8", 32, 256).view(32, 8, 36)
    raw[:, :, :4] = raw[:, :1, :4]
    raw = raw.flatten(1)
    matrix = packed("FP8", raw, 256, device)
    x, bias = torch.randn(6, 256, device=device).bfloat16(), torch.randn(32, device=device)
    with assuming(90):
        assert "scales of 32 columns" in scaled.declines(x, matrix, torch.bfloat16)
    matrix.settle()
    for given, out_dtype, target, reason in (
        (x, torch.bfloat16, 80, "sm_89"),
        (x.half(), torch.float16, 90, "bfloat16"),
    ):
        with assuming(target):
            assert reason in scaled.declines(given, matrix, out_dtype)
    if scaled.declines(x, matrix, torch.bfloat16) is not None:
        pytest.skip("torch has no scaled product on this device")
    out = gemm.matmul(x, [matrix], bias.bfloat16())
    codes, scales = scaled.quantized(x)
    seen = codes.float().view(6, -1, 4, 4).transpose(2, 3).reshape(6, 256) * scales
    weight = dequantize(raw, "FP8").to(device)
    expected = seen @ weight.t() + bias.bfloat16().float()
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("storage", ["Q4_K", "FP8", "MXFP4", "Q6_K"])
@pytest.mark.parametrize("columns", [256, 352])
def test_arranged_products_are_those_of_the_columns(storage, columns, device):
    """Weights decoded in the order in which activations are arranged, and zeros behind both."""
    if storage in ("Q4_K", "Q6_K") and columns % 256:
        pytest.skip("its blocks have 256 columns")
    raw = random_raw(storage, 9, columns)
    matrix = packed(storage, raw, columns, device)
    x = torch.randn(5, columns + 3, device=device)[:, :columns]
    taken = arranged(x, matrix.layout)
    weight = gemm._decoded(matrix, torch.float32, 0, 9, arranged=True)
    assert taken.shape == (5, -(-columns // 256) * 256) and weight.shape == (9, taken.shape[1])
    expected = x.double() @ dequantize(raw, storage).double().to(device).t()
    torch.testing.assert_close(taken.double() @ weight.double().t(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("storage", IN_PAIRS)
def test_weights_of_products_in_bf16_are_those_of_fp32_rounded(storage, device):
    """Each within two roundings: two are decoded at once, and their scales are in two parts."""
    raw = random_raw(storage, ROWS, 512, seed=3)
    matrix = packed(storage, raw, 512, device)
    columns = torch.randperm(512, device=device)[:48]
    x = torch.nn.functional.one_hot(columns, 512).bfloat16()
    found = gemm.matmul(x, [matrix], out_dtype=torch.float32)
    expected = dequantize(raw, storage).to(device)[:, columns].t()
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-5)
    assert (found == expected.bfloat16().float()).float().mean() > 0.7
