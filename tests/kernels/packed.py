"""Random checkpoint bytes, packed matrices and their products for the tests."""

import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.kernels.ref import packed as reference
from pagoda.weights.formats import FORMATS

_native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)

STORAGES = tuple(_native.PACKED_STORAGES)
FLOATS = ("F32", "F16", "BF16")
BF16_SETS = ("amx", "avx512")
"""Instruction sets that multiply pairs of bf16, so that activations are rounded to it."""
SIGNED = ("Q8_0", "IQ4_NL", "IQ4_XS")
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Where in a block the fp16 numbers lie.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "MXFP4": (),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ1_M": (),
    "NVFP4": (),
}


def random_raw(storage: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """uint8 [rows, bytes per row]: any bits, but scales of a sane size."""
    generator = torch.Generator().manual_seed(seed)
    if storage in FLOATS:
        values = torch.randn(rows, columns, generator=generator).to(_DTYPES[storage])
        return values.view(torch.uint8).reshape(rows, -1)
    stored = FORMATS[storage]
    blocks = columns // stored.block_elements
    shape = (rows, blocks, stored.block_bytes)
    raw = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    for place in _HALVES.get(storage, (0,)):
        halves = torch.randn(rows, blocks, 1, generator=generator).half() * 0.1
        raw[:, :, place : place + 2] = halves.view(torch.uint8)
    if storage == "MXFP4":
        raw[:, :, 0] = torch.randint(118, 130, (rows, blocks), generator=generator)
    if storage == "IQ1_M":  # the highest bits of four bytes, here of 2^-7 to 2^-3
        raw[:, :, 55] = raw[:, :, 55] & 0x8F | 0x20
    if storage == "NVFP4":
        raw[:, :, :4] = torch.randint(16, 48, (rows, blocks, 4), generator=generator)
    return raw.reshape(rows, -1)


def scale_places(storage: str) -> list[int]:
    """Bytes of a block that hold its fp16 (or E8M0) scales."""
    if storage in ("MXFP4", "IQ1_M"):
        return [0] if storage == "MXFP4" else [49, 51, 53, 55]
    return [byte for place in _HALVES.get(storage, (0,)) for byte in (place, place + 1)]


def pack(native, storage: str, raw: torch.Tensor, columns: int):
    matrix = cpu.packed_matrix(storage, len(raw), columns)
    native.load(matrix, 0, len(raw), raw.data_ptr(), raw.stride(0))
    return matrix


def unpack(native, matrix) -> torch.Tensor:
    """All rows, fp32."""
    ids = torch.arange(matrix.rows)
    out = torch.full((matrix.rows, matrix.columns), torch.nan)
    native.gather(matrix, ids.data_ptr(), len(ids), out.data_ptr())
    return out


def multiply(native, x: torch.Tensor, matrices, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The native product; checks that nothing beside the result is written."""
    columns, rows = matrices[0].columns, sum(matrix.rows for matrix in matrices)
    out = torch.full((len(x) + 1, rows + 3), torch.nan)
    padded = torch.full((len(x), columns + 5), torch.nan)
    padded[:, :columns] = x
    native.matmul(
        padded.data_ptr(), padded.stride(0), len(x), matrices, out.data_ptr(), out.stride(0),
        0 if bias is None else bias.data_ptr(),
    )  # fmt: skip
    assert out[len(x) :].isnan().all()
    assert out[:, rows:].isnan().all()
    return out[: len(x), :rows].clone()


def rounded(x: torch.Tensor, storage: str, isa: str) -> torch.Tensor:
    """Activations as the kernel sees them, fp64."""
    if storage == "BF16" and isa in BF16_SETS:
        return x.bfloat16().double()
    if storage in FLOATS:
        return x.double()
    if isa != "avx2":
        return reference.round_activations(x)
    if storage in SIGNED:
        return reference.round_to_words(x)
    return reference.round_with_multipliers(x)


def check_product(native, x, raw, storage, bias=None) -> None:
    """Equal to the product of the rounded activations but for the rounding of fp32 sums."""
    weight = ops.dequantize(raw, storage).double()
    columns = weight.shape[1]
    out = multiply(native, x, [pack(native, storage, raw, columns)], bias)
    seen = rounded(x, storage, native.isa)
    expected = seen @ weight.t() + (0 if bias is None else bias.double())
    terms = seen.abs() @ weight.abs().t() + (0 if bias is None else bias.abs().double())
    # A minimum's and a scale's part of a weight may each be larger than the weight: a factor of 4.
    excess = (out.double() - expected).abs() - 4 * 2.0**-23 * (4 + columns / 32) ** 0.5 * terms
    assert not out.isnan().any()
    assert excess.max().item() <= 1e-30
