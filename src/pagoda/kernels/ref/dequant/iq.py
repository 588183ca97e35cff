"""IQ types: groups of 4 or 8 magnitudes are codewords of a grid, signs and scales lie apart.

Each function decodes uint8 [n, block bytes] to fp32 [n, 256], in ggml's order of operations.
"""

import functools

import torch

from pagoda.kernels.ref.dequant.bits import fields, half, in_order, lookup, words
from pagoda.kernels.ref.dequant.blocks import IQ4_LEVELS
from pagoda.kernels.ref.dequant.grids import grid

Tensor = torch.Tensor


@functools.cache
def _sign_table() -> Tensor:
    """[128, 8] of +1 and -1: seven stored bits, the eighth makes the number of minuses even."""
    rows = [[i >> j & 1 for j in range(7)] for i in range(128)]
    return torch.tensor([[1.0 - 2 * bit for bit in (*row, sum(row) % 2)] for row in rows])


def _signs(packed: Tensor) -> Tensor:
    """uint8 [n, k] -> fp32 [n, 8k], -1 where a bit is set."""
    return 1 - 2 * in_order(packed, 1, 8).float()


def _signed(scale: Tensor, codewords: Tensor, signs: Tensor) -> Tensor:
    """scale [n, groups] over equal groups of elements."""
    groups = scale.shape[1]
    values = scale.unsqueeze(-1) * codewords.reshape(-1, groups, 256 // groups)
    return values.reshape(-1, 256) * signs.reshape(-1, 256)


def iq2_xxs(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ2_XXS blocks, uint8 [blocks, 66] as in the file."""
    d, packed = fields(blocks, 2, 64)
    # Per 32 elements: four indices in one word, four times 7 sign bits and a scale in the next.
    indices = packed.reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    info = words(packed, torch.int32)[:, 1::2]
    scale = half(d) * (0.5 + (info >> 28).float()) * 0.25
    signs = lookup(_sign_table(), in_order(info, 7, 4))
    return _signed(scale, lookup(grid("IQ2_XXS"), indices), signs)


def iq2_xs(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ2_XS blocks, uint8 [blocks, 74] as in the file."""
    d, packed, scales = fields(blocks, 2, 64, 8)
    indices = words(packed, torch.int16)
    scale = half(d) * (0.5 + in_order(scales, 4, 2).float()) * 0.25
    signs = lookup(_sign_table(), indices >> 9)
    return _signed(scale, lookup(grid("IQ2_XS"), indices & 511), signs)


def iq2_s(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ2_S blocks, uint8 [blocks, 82] as in the file."""
    d, low, signs, high, scales = fields(blocks, 2, 32, 32, 8, 8)
    indices = low.int() | (in_order(high, 2, 4).int() << 8)
    scale = half(d) * (0.5 + in_order(scales, 4, 2).float()) * 0.25
    return _signed(scale, lookup(grid("IQ2_S"), indices), _signs(signs))


def iq3_xxs(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ3_XXS blocks, uint8 [blocks, 98] as in the file."""
    d, indices, packed = fields(blocks, 2, 64, 32)
    info = words(packed, torch.int32)
    scale = half(d) * (0.5 + (info >> 28).float()) * 0.5
    signs = lookup(_sign_table(), in_order(info, 7, 4))
    return _signed(scale, lookup(grid("IQ3_XXS"), indices), signs)


def iq3_s(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ3_S blocks, uint8 [blocks, 110] as in the file."""
    d, low, high, signs, scales = fields(blocks, 2, 64, 8, 32, 4)
    indices = low.int() | (in_order(high, 1, 8).int() << 8)
    scale = half(d) * (1 + 2 * in_order(scales, 4, 2).float())
    return _signed(scale, lookup(grid("IQ3_S"), indices), _signs(signs))


def iq1_s(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ1_S blocks, uint8 [blocks, 50] as in the file."""
    d, low, packed = fields(blocks, 2, 32, 16)
    info = words(packed, torch.int16)
    indices = low.int() | (in_order(info & 0xFFF, 3, 4) << 8)
    scale = half(d) * (2 * ((info >> 12) & 7) + 1).float()
    delta = torch.where(info >= 0x8000, -0.125, 0.125)
    values = lookup(grid("IQ1_S"), indices).reshape(-1, 8, 32)
    return (scale.unsqueeze(-1) * (values + delta.unsqueeze(-1))).reshape(-1, 256)


def iq1_m(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ1_M blocks, uint8 [blocks, 56] as in the file."""
    low, high, packed = fields(blocks, 32, 16, 8)
    info = words(packed, torch.int16)
    # The block's fp16 scale is spread over the top nibbles of the four words.
    nibbles = (info >> 12) << torch.arange(0, 16, 4, dtype=torch.int32, device=info.device)
    d = nibbles.sum(dim=1, keepdim=True).to(torch.int16).view(torch.float16).float()
    scale = d * (2 * in_order(info & 0xFFF, 3, 4) + 1).float()
    info4 = in_order(high, 4, 2)
    indices = low.int() | ((info4 & 7).int() << 8)
    delta = torch.where(info4 >= 8, -0.125, 0.125)
    values = lookup(grid("IQ1_S"), indices) + delta.unsqueeze(-1)
    return (scale.unsqueeze(-1) * values.reshape(-1, 16, 16)).reshape(-1, 256)


def iq4_xs(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's IQ4_XS blocks, uint8 [blocks, 136] as in the file."""
    d, high, low, packed = fields(blocks, 2, 2, 4, 128)
    top = in_order(words(high, torch.int16), 2, 8)
    scale = half(d) * ((in_order(low, 4, 2).int() | (top << 4)).float() - 32)
    nibbles = packed.reshape(-1, 8, 16)
    values = lookup(IQ4_LEVELS, torch.cat((nibbles & 15, nibbles >> 4), dim=2))
    return (scale.unsqueeze(-1) * values).reshape(-1, 256)
