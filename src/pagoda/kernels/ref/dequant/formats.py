"""Decode any storage format to plain numbers; the reference for every packed kernel.

Of GGUF's formats results equal `gguf.quants.dequantize` bit for bit in fp32.
"""

from collections.abc import Callable

import torch

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels.ref.dequant import blocks, iq, k_quants, published
from pagoda.weights.formats import FORMATS

Tensor = torch.Tensor

_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "DECODED": torch.float32,
}

_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": blocks.q4_0,
    "Q4_1": blocks.q4_1,
    "Q5_0": blocks.q5_0,
    "Q5_1": blocks.q5_1,
    "Q8_0": blocks.q8_0,
    "IQ4_NL": blocks.iq4_nl,
    "TQ1_0": blocks.tq1_0,
    "TQ2_0": blocks.tq2_0,
    "MXFP4": blocks.mxfp4,
    "NVFP4": blocks.nvfp4,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ2_XXS": iq.iq2_xxs,
    "IQ2_XS": iq.iq2_xs,
    "IQ2_S": iq.iq2_s,
    "IQ3_XXS": iq.iq3_xxs,
    "IQ3_S": iq.iq3_s,
    "IQ1_S": iq.iq1_s,
    "IQ1_M": iq.iq1_m,
    "IQ4_XS": iq.iq4_xs,
    "INT4": published.int4,
    "UINT4": published.uint4,
    "INT8": published.int8,
    "FP8": published.fp8,
    "FP4": published.fp4,
}

SUPPORTED = frozenset(_PLAIN) | frozenset(_DECODERS)
"""Storage formats that `dequantize` decodes."""

# Elements decoded at once, so that temporaries stay small and in cache. Of 2^15 to 2^20 the
# fastest on two cores: 0.15 s for the 135M parameters of the default model.
_CHUNK_ELEMENTS = 1 << 17


def dequantize(raw: Tensor, storage: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decode uint8 [rows, bytes per row] to [rows, columns], on the device of `raw`.

    Computed in fp32 and then rounded to `dtype`. Raises UnsupportedModelError for a format that
    has no decoder, ValueError for rows that are no whole blocks.
    """
    if storage not in SUPPORTED:
        raise UnsupportedModelError(
            f"Weights stored as {storage} cannot be decoded; known: {', '.join(sorted(SUPPORTED))}."
        )
    stored = FORMATS[storage]
    rows, row_bytes = raw.shape
    if row_bytes % stored.block_bytes:
        raise ValueError(f"{row_bytes} bytes are no whole {storage} blocks")
    if storage in _PLAIN:
        return raw.contiguous().view(_PLAIN[storage]).to(dtype)
    row_blocks = row_bytes // stored.block_bytes
    decode = _DECODERS[storage]
    out = torch.empty((rows, row_blocks * stored.block_elements), dtype=dtype, device=raw.device)
    blocks = raw.reshape(-1, stored.block_bytes)
    flat = out.view(-1, stored.block_elements)
    step = _CHUNK_ELEMENTS // stored.block_elements
    for start in range(0, len(blocks), step):
        flat[start : start + step] = decode(blocks[start : start + step])
    return out
