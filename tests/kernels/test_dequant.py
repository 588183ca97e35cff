"""Every decoder against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels.ref.dequant.formats import SUPPORTED, dequantize
from pagoda.weights.formats import FORMATS

REFERENCE_TYPES = sorted({kind.name for kind in quants._type_traits} | {"F32", "F16"})
ODD_BYTES = (0x00, 0x01, 0x7B, 0x7C, 0x7E, 0x7F, 0x80, 0x81, 0xAA, 0xFC, 0xFF)


def reference(raw: np.ndarray, storage: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, GGMLQuantizationType[storage])


def assert_same_bits(ours: torch.Tensor, theirs: np.ndarray) -> None:
    ours_np = ours.numpy()
    assert ours_np.shape == theirs.shape
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours_np), nan)
    # A NaN's payload depends on the processor's conversion instructions, not on the format.
    assert np.array_equal(ours_np.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


def random_blocks(storage: str, rows: int, row_blocks: int, seed: int) -> np.ndarray:
    size = (rows, row_blocks * FORMATS[storage].block_bytes)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_every_type_of_the_reference_is_decoded() -> None:
    assert set(REFERENCE_TYPES) <= SUPPORTED


@pytest.mark.parametrize("storage", REFERENCE_TYPES)
def test_random_blocks(storage: str) -> None:
    # Enough for more than one chunk, the last one partial.
    raw = random_blocks(storage, 67, 65 if FORMATS[storage].block_elements < 256 else 9, seed=1)
    assert_same_bits(dequantize(torch.from_numpy(raw), storage), reference(raw, storage))


@pytest.mark.parametrize("storage", REFERENCE_TYPES)
def test_odd_blocks(storage: str) -> None:
    """Blocks of one repeated byte (zeros, infinities, NaN, subnormals), then with each byte odd."""
    size = FORMATS[storage].block_bytes
    repeated = [np.full(size, byte, dtype=np.uint8) for byte in range(256)]
    rng = np.random.default_rng(2)
    mixed = rng.choice(np.array(ODD_BYTES, dtype=np.uint8), (512, size))
    raw = np.concatenate([np.stack(repeated), mixed])
    assert_same_bits(dequantize(torch.from_numpy(raw), storage), reference(raw, storage))


@pytest.mark.parametrize("scale_byte", range(256))
def test_every_scale_of_the_fp4_types(scale_byte: int) -> None:
    rng = np.random.default_rng(scale_byte)
    for storage, scale_bytes in (("MXFP4", 1), ("NVFP4", 4)):
        raw = rng.integers(0, 256, (4, FORMATS[storage].block_bytes), dtype=np.uint8)
        raw[:, :scale_bytes] = scale_byte
        assert_same_bits(dequantize(torch.from_numpy(raw), storage), reference(raw, storage))


def test_f64_rounds_once() -> None:
    values = np.random.default_rng(3).standard_normal((5, 8))
    raw = torch.from_numpy(values.view(np.uint8))
    assert_same_bits(dequantize(raw, "F64"), values.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_is_the_rounded_fp32_result(dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_blocks("Q4_K", 300, 2, seed=4))
    raw[:, 1] &= 0x3F
    raw[:, 145] &= 0x3F
    expected = dequantize(raw, "Q4_K").to(dtype)
    assert torch.equal(dequantize(raw, "Q4_K", dtype).nan_to_num(), expected.nan_to_num())


def test_column_slices_need_not_be_contiguous() -> None:
    raw = random_blocks("Q5_1", 8, 6, seed=5)
    size = FORMATS["Q5_1"].block_bytes
    part = torch.from_numpy(raw)[:, 2 * size : 5 * size]
    assert not part.is_contiguous()
    assert_same_bits(dequantize(part, "Q5_1"), reference(raw, "Q5_1")[:, 64:160])


def test_no_rows() -> None:
    assert dequantize(torch.empty((0, 36), dtype=torch.uint8), "Q4_0").shape == (0, 64)


def test_broken_rows_and_unknown_formats_are_named() -> None:
    with pytest.raises(ValueError, match="whole Q4_0 blocks"):
        dequantize(torch.zeros((2, 17), dtype=torch.uint8), "Q4_0")
    with pytest.raises(UnsupportedModelError, match="Q8_K"):
        dequantize(torch.zeros((2, 292), dtype=torch.uint8), "Q8_K")


def test_quantized_by_the_reference() -> None:
    """Sane values, through the package's own quantizers where it has one."""
    values = np.random.default_rng(6).standard_normal((16, 512)).astype(np.float32)
    for kind in quants._type_traits:
        try:
            raw = gguf.quantize(values, kind)
        except NotImplementedError:
            continue
        ours = dequantize(torch.from_numpy(raw), kind.name)
        assert_same_bits(ours, reference(raw, kind.name))
        assert np.abs(ours.numpy() - values).max() < 2.5
