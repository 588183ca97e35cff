"""Random rows of blocks of the storage formats that GPUs keep, and matrices of them."""

import torch

from pagoda.kernels.triton.products.layouts import STORAGES
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.weights.formats import FORMATS

ALL = sorted(STORAGES)
# Where in a block the fp16 numbers lie, of those that have other places than the first.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}
_SINGLES = ("INT4", "UINT4", "INT8", "FP8", "FP4")


def random_raw(storage: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """uint8 [rows, bytes per row]: any codes, scales such that weights are about one."""
    generator = torch.Generator().manual_seed(seed)
    stored = FORMATS[storage]
    shape = (rows, columns // stored.block_elements)
    raw = torch.randint(
        0, 256, (*shape, stored.block_bytes), generator=generator, dtype=torch.uint8
    )
    # What a scale is multiplied with: codes, and the K-quants' scales of their own.
    largest = 2.0 ** {"Q8_0": 7, "INT8": 7, "FP8": 9}.get(storage, 4) * (
        32 if storage.endswith(("K", "XS")) else 1
    )
    scales = (torch.randn(*shape, 1, generator=generator) / largest).abs() + 1 / largest
    if storage in _SINGLES:
        if storage == "FP4":  # one for a row, times those of groups: 0.5 to 2
            scales = scales[:, :1].expand_as(scales).contiguous()
            raw[..., 4:6] = torch.randint(0x30, 0x41, (*shape, 2), generator=generator)
        raw[..., :4] = scales.view(torch.uint8)
    elif storage == "MXFP4":
        raw[..., 0] = torch.randint(123, 127, shape, generator=generator)
    else:
        for place in _HALVES.get(storage, (0,)):
            raw[..., place : place + 2] = scales.half().view(torch.uint8)
    if storage == "UINT4":
        raw[..., 4] &= 15
    if storage == "FP8":  # no NaN
        raw[..., 4:][(raw[..., 4:] & 127) == 127] = 1
    return raw.flatten(1)


def packed(storage: str, raw: torch.Tensor, columns: int, device: str) -> GpuMatrix:
    matrix = GpuMatrix(storage, len(raw), columns, device)
    matrix.load(0, raw)
    return matrix
