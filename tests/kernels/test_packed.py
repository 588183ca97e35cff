"""Packed matrices and their products against the decoded weights, on every instruction set."""

import pytest
import torch

from pagoda.kernels import ops
from tests.kernels import packed
from tests.kernels.packed import FLOATS, STORAGES, _native

ISAS = _native.INSTRUCTION_SETS
QUANTIZED = tuple(name for name in STORAGES if name not in FLOATS)
# Rows that fill no whole panel of 16, columns of whole K-quant blocks.
ROWS, COLUMNS = 37, 512


@pytest.fixture(scope="module", params=ISAS)
def native(request):
    return _native.Native(2, request.param)


def activations(tokens: int, columns: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, columns, generator=generator)
    return x * torch.randn(tokens, columns // 2, generator=generator).exp().repeat(1, 2)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rows", [1, 16, ROWS])
def test_packing_loses_nothing(storage, rows):
    native = _native.Native(3)
    raw = packed.random_raw(storage, rows, COLUMNS)
    matrix = packed.pack(native, storage, raw, COLUMNS)
    assert (matrix.rows, matrix.columns, matrix.storage) == (rows, COLUMNS, storage)
    assert torch.equal(packed.unpack(native, matrix), ops.dequantize(raw, storage))


@pytest.mark.parametrize("storage", ["Q4_1", "Q6_K", "BF16"])
def test_packing_in_pieces(storage):
    """Shards and ranks give rows in any order, and a part of the columns of wider rows."""
    native = _native.Native(2)
    wide = packed.random_raw(storage, ROWS, 2 * COLUMNS)
    raw = wide[:, wide.shape[1] // 2 :]
    matrix = _native.PackedMatrix(storage, ROWS, COLUMNS)
    for start, end in ((20, 37), (0, 3), (3, 20), (5, 5)):
        part = raw[start:end]
        native.load(matrix, start, end - start, part.data_ptr(), wide.stride(0))
    assert torch.equal(packed.unpack(native, matrix), ops.dequantize(raw, storage))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 16, 53])
def test_product(native, storage, tokens):
    raw = packed.random_raw(storage, ROWS, COLUMNS)
    if tokens == 0:
        matrix = packed.pack(native, storage, raw, COLUMNS)
        assert packed.multiply(native, torch.empty(0, COLUMNS), [matrix]).shape == (0, ROWS)
        return
    bias = torch.randn(ROWS) if tokens == 7 else None
    packed.check_product(native, activations(tokens, COLUMNS), raw, storage, bias)


@pytest.mark.parametrize("storage", QUANTIZED)
def test_error_is_that_of_rounding_activations(native, storage):
    """Against the plain product: at most half a step of each block's activations."""
    raw = packed.random_raw(storage, ROWS, COLUMNS)
    weight = ops.dequantize(raw, storage)
    x = activations(9, COLUMNS)
    x[0, 5] *= 1e4  # as some models' activations have it
    out = packed.multiply(native, x, [packed.pack(native, storage, raw, COLUMNS)])
    half_steps = x.unflatten(1, (-1, 16)).abs().amax(-1) / 254
    half_steps += half_steps.amax(-1, keepdim=True) / 16384  # AVX2 rounds steps up to these
    bound = half_steps @ weight.unflatten(1, (-1, 16)).abs().sum(-1).t()
    error = (out.double() - x.double() @ weight.double().t()).abs()
    assert (error <= 1.001 * bound + 1e-5).all()
    assert error.max() > 0  # the reference is not the code under test


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("columns", [256, 1536])
def test_columns(native, storage, columns):
    packed.check_product(
        native, activations(5, columns), packed.random_raw(storage, 16, columns), storage
    )


@pytest.mark.parametrize("storage", FLOATS)
@pytest.mark.parametrize("columns", [2, 33, 50])
def test_columns_that_fill_no_block(native, storage, columns):
    raw = packed.random_raw(storage, 18, columns)
    matrix = packed.pack(native, storage, raw, columns)
    assert torch.equal(packed.unpack(native, matrix), ops.dequantize(raw, storage))
    packed.check_product(native, torch.randn(3, columns), raw, storage)


@pytest.mark.parametrize("storage", QUANTIZED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_sums_of_extreme_bytes_are_exact(native, storage, byte):
    """All codes and activations at their limits: 16-bit sums would overflow first here."""
    raw = packed.random_raw(storage, 16, 256)
    scales = raw.clone()
    raw[:] = byte
    blocks = raw.view(16, -1, packed.FORMATS[storage].block_bytes)
    for place in packed.scale_places(storage):
        blocks[:, :, place] = scales.view(blocks.shape)[:, :, place]
    x = torch.stack((torch.ones(256), -torch.ones(256), torch.tensor([1.0, -1.0]).repeat(128)))
    packed.check_product(native, x, raw, storage)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
def test_batch_invariance(isa, storage):
    """A token's result has the same bits in any batch, at any place, on any number of threads."""
    raw = packed.random_raw(storage, 3 * ROWS, COLUMNS)
    x = activations(45, COLUMNS)
    first = _native.Native(1, isa)
    matrix = packed.pack(first, storage, raw, COLUMNS)
    whole = packed.multiply(first, x, [matrix])
    # 1 to 8 tokens make tiles of every size; 31 and 45 make several.
    parts = [(1 + size % 3, 3 * size, 4 * size) for size in range(1, 9)]
    for threads, start, end in (*parts, (2, 0, 45), (3, 5, 36), (3, 44, 45)):
        part = packed.multiply(_native.Native(threads, isa), x[start:end], [matrix])
        assert torch.equal(part, whole[start:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", ["Q4_0", "BF16"])
def test_long_prefill_is_cut_into_segments(isa, storage):
    raw = packed.random_raw(storage, 48, 64)
    native = _native.Native(2, isa)
    x = activations(600, 64)
    packed.check_product(native, x, raw, storage)
    matrix = packed.pack(native, storage, raw, 64)
    whole = packed.multiply(native, x, [matrix])
    for start, end in ((3, 4), (250, 259), (503, 600)):
        assert torch.equal(packed.multiply(native, x[start:end], [matrix]), whole[start:end])


def test_merged_matrices_of_different_storage(native):
    kinds = {"Q4_1": 48, "Q6_K": 7, "BF16": 16, "F32": 5, "Q4_0": 33}
    raws = {kind: packed.random_raw(kind, rows, COLUMNS) for kind, rows in kinds.items()}
    matrices = [packed.pack(native, kind, raw, COLUMNS) for kind, raw in raws.items()]
    x, bias = activations(19, COLUMNS), torch.randn(sum(kinds.values()))
    merged = packed.multiply(native, x, matrices, bias)
    apart = torch.cat([packed.multiply(native, x, [matrix]) for matrix in matrices], dim=1)
    assert torch.equal(merged, apart + bias)


@pytest.mark.parametrize("storage", ["Q4_1", "Q6_K", "Q8_0", "BF16", "F16"])
def test_a_broken_token_breaks_no_other(native, storage):
    raw = packed.random_raw(storage, ROWS, COLUMNS)
    matrix = packed.pack(native, storage, raw, COLUMNS)
    x = activations(20, COLUMNS)
    sound = packed.multiply(native, x, [matrix])
    x[4, 77], x[6, 0], x[9, 100] = torch.nan, torch.inf, -torch.nan
    out = packed.multiply(native, x, [matrix])
    others = [i for i in range(20) if i not in (4, 6, 9)]
    assert torch.equal(out[others], sound[others])
    assert out[[4, 9]].isnan().all()
    assert not out[6].isfinite().any()


@pytest.mark.parametrize("storage", ["Q4_1", "Q8_0", "Q6_K"])
def test_blocks_of_zeros_and_of_tiny_numbers(native, storage):
    raw = packed.random_raw(storage, ROWS, COLUMNS)
    x = activations(6, COLUMNS)
    x[0], x[1, :32], x[2] = 0, 0, 1e-40
    packed.check_product(native, x, raw, storage)


def test_errors():
    native = _native.Native(1)
    with pytest.raises(ValueError, match="NVFP4"):
        _native.PackedMatrix("NVFP4", 16, 256)
    with pytest.raises(ValueError, match="Q4_K has no grid of 8 levels"):
        _native.fill_grid("Q4_K", torch.zeros(8, dtype=torch.int8).data_ptr(), 8)
    with pytest.raises(ValueError, match="whole blocks"):
        _native.PackedMatrix("Q4_K", 16, 288)
    matrix = _native.PackedMatrix("Q4_0", 16, 32)
    raw = packed.random_raw("Q4_0", 17, 32)
    with pytest.raises(IndexError):
        native.load(matrix, 0, 17, raw.data_ptr(), raw.stride(0))
    for row in (-1, 16):
        ids = torch.tensor([row])
        with pytest.raises(IndexError):
            native.gather(matrix, ids.data_ptr(), 1, torch.empty(32).data_ptr())
    other = _native.PackedMatrix("Q4_0", 16, 64)
    with pytest.raises(ValueError, match="same columns"):
        native.matmul(0, 32, 1, [matrix, other], 0, 32)
