"""Taking packed fields out of quantized blocks; shared by the dequantizers."""

import torch

Tensor = torch.Tensor


def fields(blocks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Split uint8 [n, bytes] into its struct's fields, of so many bytes each."""
    return torch.split(blocks, list(sizes), dim=1)


def half(raw: Tensor) -> Tensor:
    """Little-endian fp16 numbers of uint8 [n, 2k] as fp32 [n, k]."""
    return raw.contiguous().view(torch.float16).float()


def words(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [n, bytes] as int16 (or int32) words, widened so that they are not negative."""
    if dtype == torch.int16:
        return raw.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    return raw.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def nibbles(packed: Tensor) -> Tensor:
    """Low halves of all bytes, then high halves: uint8 [n, k] -> [n, 2k]."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def planes(packed: Tensor, group: int, bits: int, count: int) -> Tensor:
    """Spread bytes whose low `bits` belong to one group of elements, the next to another.

    uint8 [n, bytes] -> [n, bytes / group, count, group]: of every `group` bytes first all lowest
    fields, then all second ones, and so on.
    """
    grouped = packed.reshape(packed.shape[0], -1, 1, group)
    shifts = torch.arange(0, bits * count, bits, dtype=torch.uint8, device=packed.device)
    return (grouped >> shifts.view(1, 1, count, 1)) & ((1 << bits) - 1)


def in_order(packed: Tensor, bits: int, count: int) -> Tensor:
    """Spread integers into `count` fields each, lowest first: [n, k] -> [n, k * count]."""
    shifts = torch.arange(0, bits * count, bits, dtype=packed.dtype, device=packed.device)
    spread = (packed.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return spread.reshape(packed.shape[0], -1)


def lookup(values: Tensor, indices: Tensor) -> Tensor:
    """values[indices] for a small table, on the device of the indices."""
    return values.to(indices.device)[indices.long()]
