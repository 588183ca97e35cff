"""From a storage format that native kernels lack to the nearest one that they have.

Which is nearest: `weights.formats.held_as`. What it costs: docs/quantization.md.
"""

import torch

from pagoda.base.errors import CheckpointError
from pagoda.kernels import ops
from pagoda.quant.plain import STORAGES
from pagoda.weights.quantize import BLOCKS, quantize_rows

Tensor = torch.Tensor

# Bytes of a block: its fp32 scale, and with UINT4 the zero point before the codes.
_SCALE, _BLOCK = 4, {"INT4": 20, "UINT4": 21, "INT8": 36}


def repacked(raw: Tensor, storage: str, target: str) -> Tensor:
    """uint8 [rows, bytes per row] of `storage` as rows of `target`.

    The codes of INT4, UINT4 and INT8 stay as they are and their scales are rounded to fp16;
    anything else is rounded anew. CheckpointError for weights that `target` cannot hold.
    """
    if (storage, target) in (("INT4", "Q4_0"), ("UINT4", "Q4_1"), ("INT8", "Q8_0")):
        return _same_codes(raw, storage)
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


def _half(x: Tensor) -> Tensor:
    """fp32 [rows, blocks, 1] as bytes of fp16 [rows, blocks, 2]."""
    rounded = x.half()
    if not rounded.isfinite().all():
        raise CheckpointError("A scale of the quantized weights is infinite, NaN or beyond 65504.")
    return rounded.view(torch.uint8)
