"""From a storage format that native kernels lack to the nearest one that they have.

Which is nearest: `weights.formats.held_as`. What it costs: docs/quantization.md.
"""

import torch

from pagoda.base.errors import CheckpointError
from pagoda.kernels import ops
from pagoda.kernels.ref.dequant.bits import nibbles
from pagoda.quant.plain import STORAGES
from pagoda.weights.quantize import BLOCKS, quantize_rows

Tensor = torch.Tensor

# Bytes of a block: its fp32 scale, and with UINT4 the zero point before the codes.
_SCALE, _BLOCK = 4, {"INT4": 20, "UINT4": 21, "INT8": 36}
# E2M1's 16 numbers, doubled to be whole, as the codes of Q6_K.
_SIX_BITS = torch.tensor((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)) + 32
# The smallest number of E4M3 above 0, of which all others are multiples.
_E4M3_UNIT = 2.0**-9
_LARGEST_SCALE = 127


def repacked(raw: Tensor, storage: str, target: str) -> Tensor:
    """uint8 [rows, bytes per row] of `storage` as rows of `target`.

    The codes of INT4, UINT4 and INT8 stay as they are and their scales are rounded to fp16; what
    becomes of FP4's in Q6_K: `_in_six_bits`. Anything else is rounded anew. CheckpointError for
    weights that `target` cannot hold.
    """
    if (storage, target) in (("INT4", "Q4_0"), ("UINT4", "Q4_1"), ("INT8", "Q8_0")):
        return _same_codes(raw, storage)
    if (storage, target) == ("FP4", "Q6_K"):
        return _in_six_bits(raw)
    if target in BLOCKS:
        plain = ops.dequantize(raw, storage)
        try:
            return torch.from_numpy(quantize_rows(plain.view(torch.uint8).numpy(), "F32", target))
        except ValueError as error:
            raise CheckpointError(
                f"Weights stored as {storage} do not fit {target}: {error}. The file is damaged."
            ) from error
    return ops.dequantize(raw, storage, STORAGES[target]).view(torch.uint8)


def _same_codes(raw: Tensor, storage: str) -> Tensor:
    blocks = raw.reshape(len(raw), -1, _BLOCK[storage])
    scale = blocks[..., :_SCALE].contiguous().view(torch.float32)
    header = [_half(scale)]
    if storage == "UINT4":
        zero = blocks[..., _SCALE : _SCALE + 1].float()
        header.append(_half(-scale * zero))
    codes = blocks[..., _SCALE + len(header) - 1 :]
    return torch.cat((*header, codes), dim=-1).flatten(1)


def _in_six_bits(raw: Tensor) -> Tensor:
    """FP4 as Q6_K, which has a scale for 16 columns too: a signed byte times an fp16 for 256.

    Codes stay as they are. A scale of E4M3 is 4 bits times a power of two. The bytes hold all of
    them as long as the largest of a block is up to 8 times its smallest; smaller ones are rounded
    to steps of 1/64 of the largest or less.
    """
    blocks = raw.reshape(len(raw), -1, 8, 22)
    whole = blocks[..., 0, :_SCALE].contiguous().view(torch.float32)
    found = blocks[..., _SCALE:6].contiguous().view(torch.float8_e4m3fn).float().flatten(2)
    if not found.isfinite().all():
        raise CheckpointError("A scale of the quantized weights is NaN. The file is damaged.")
    units = (found.abs() / _E4M3_UNIT).to(torch.int32)
    largest = units.amax(-1, keepdim=True)
    divisor = torch.where(units == 0, 1 << 30, units & -units).amin(-1, keepdim=True)
    fitting = torch.exp2((largest.clamp(min=1) / _LARGEST_SCALE).log2().ceil())
    step = torch.maximum(torch.where(largest == 0, 1, divisor).float(), fitting) * _E4M3_UNIT
    scales = (found / step).round().to(torch.int8)
    codes = _SIX_BITS[nibbles(blocks[..., 6:].reshape(-1, 16)).long()].to(torch.uint8)
    codes = codes.view(*blocks.shape[:2], 2, 128)
    low, high = codes & 15, codes >> 4
    # As the file has them, by 128 columns: low bits of columns 64 apart share a byte, high bits of
    # columns 32 apart.
    low = low[..., :64] | low[..., 64:] << 4
    apart = high.unflatten(-1, (4, 32))
    high = apart[..., 0, :] | apart[..., 1, :] << 2 | apart[..., 2, :] << 4 | apart[..., 3, :] << 6
    parts = (low.flatten(2), high.flatten(2), scales.view(torch.uint8), _half(whole * step / 2))
    return torch.cat(parts, dim=-1).flatten(1)


def _half(x: Tensor) -> Tensor:
    """fp32 [rows, blocks, 1] as bytes of fp16 [rows, blocks, 2]."""
    rounded = x.half()
    if not rounded.isfinite().all():
        raise CheckpointError("A scale of the quantized weights is infinite, NaN or beyond 65504.")
    return rounded.view(torch.uint8)
