"""KV blocks as bytes, to be kept elsewhere."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagoda.runtime.device import to_tensor
from pagoda.runtime.inputs import KVCaches

Bytes = npt.NDArray[np.uint8]


def read_blocks(kv_caches: KVCaches, layers: Sequence[int], blocks: Sequence[int]) -> Bytes:
    """uint8 [blocks, bytes of one]: K and V of the layers, one after the other."""
    parts = []
    for layer in layers:
        for cache in kv_caches[layer]:
            index = to_tensor(np.asarray(blocks, np.int64), cache.device)
            parts.append(_as_bytes(cache[index]).cpu().numpy())
    return np.concatenate(parts, axis=1)


def write_blocks(
    kv_caches: KVCaches, layers: Sequence[int], blocks: Sequence[int], data: Bytes
) -> None:
    """Put back what `read_blocks` gave."""
    start = 0
    for layer in layers:
        for cache in kv_caches[layer]:
            index = to_tensor(np.asarray(blocks, np.int64), cache.device)
            size = cache[0].numel() * cache.element_size()
            part = torch.from_numpy(data[:, start : start + size].copy())
            cache[index] = part.to(cache.device).view(cache.dtype).view(-1, *cache.shape[1:])
            start += size


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(len(rows), rows.shape[1:].numel()).view(torch.uint8)
