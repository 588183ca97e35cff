"""The memory of all KV and state blocks, and each layer's view of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.kvcache.layout import SlabLayout
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec
from pagoda.kernels.ref.kv_cache import row_elements, views
from pagoda.runtime.device import Device, to_tensor

Bytes = npt.NDArray[np.uint8]


@dataclass
class LayerCaches:
    """The caches of a model's layers, in order."""

    layer_group: list[int]
    """The group of each layer."""
    layers: list[tuple[torch.Tensor, ...]]
    """K and V (`kernels.ref.kv_cache`), or the parts of a state; a block's are contiguous."""


class CacheMemory(LayerCaches):
    """One piece of memory in which blocks of every group lie as `SlabLayout` says."""

    def __init__(self, groups: Sequence[GroupSpec], num_slabs: int, device: Device):
        layout = SlabLayout(groups, num_slabs)
        memory = device.reserve((layout.nbytes if groups else 0,), torch.uint8)
        self._device, self._memory = device, memory
        self.rows: list[torch.Tensor] = []
        """By group, uint8 [blocks, bytes of one]."""
        placed = {}
        for index, group in enumerate(groups):
            count, size = layout.num_ids(index), group.block_bytes
            rows = memory[: count * size].view(count, size)
            self.rows.append(rows)
            for layer, parts in zip(group.layers, _layers(rows, group, device), strict=True):
                placed[layer] = (index, parts)
            if isinstance(group, KVGroupSpec):
                placed |= {layer: placed[owner] for layer, owner in group.borrowers}
        layers = sorted(placed)
        super().__init__(
            [placed[layer][0] for layer in layers], [placed[layer][1] for layer in layers]
        )

    def last(self, count: int) -> tuple[list[int], LayerCaches]:
        """The caches of the last `count` layers, as if there were no others: their groups, and
        each layer's place among these."""
        groups = sorted(set(self.layer_group[-count:]))
        places = [groups.index(group) for group in self.layer_group[-count:]]
        return groups, LayerCaches(places, self.layers[-count:])

    def discard(self) -> None:
        """Give the memory back; nothing is read or written until `restore`."""
        if self._memory.numel():
            self._device.discard(self._memory)

    def restore(self) -> None:
        """The memory again, without what it held."""
        if self._memory.numel():
            self._device.restore(self._memory)

    def read(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one]."""
        rows = self.rows[group]
        index = to_tensor(np.asarray(blocks, np.int64), rows.device)
        read: Bytes = rows[index].cpu().numpy()
        return read

    def write(self, group: int, blocks: Sequence[int], data: Bytes) -> None:
        """Put back what `read` gave, into blocks that nobody reads meanwhile."""
        rows = self.rows[group]
        index = to_tensor(np.asarray(blocks, np.int64), rows.device)
        # Copied: a mapped file's pages are read-only, which torch does not know.
        rows[index] = to_tensor(np.array(data), rows.device)


def _layers(rows: torch.Tensor, group: GroupSpec, device: Device) -> list[tuple[torch.Tensor, ...]]:
    """The parts of each layer, views of uint8 rows [blocks, bytes of one]."""
    if isinstance(group, KVGroupSpec):
        dtype = device.dtype(group.kv_dtype)
        size = group.num_kv_heads * group.block_size * row_elements(group.head_dim, dtype)
        pairs = _parts(rows, group, dtype, (size, 0 if group.latent else size))
        return [
            views(keys, keys if group.latent else values, group.layout, group.num_kv_heads)
            for keys, values in pairs
        ]
    sizes = [prod(shape) for shape in group.shapes]
    return [
        tuple(part.unflatten(1, shape) for part, shape in zip(parts, group.shapes, strict=True))
        for parts in _parts(rows, group, torch.float32, sizes)
    ]


def _parts(
    rows: torch.Tensor, group: GroupSpec, dtype: torch.dtype, sizes: Sequence[int]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Each layer's parts of rows of bytes, so many elements long."""
    *starts, layer_bytes = [0, *accumulate(group.part_bytes)]
    for layer in range(0, len(group.layers) * layer_bytes, layer_bytes):
        yield tuple(
            rows[:, layer + start : layer + start + size * dtype.itemsize].view(dtype)
            for start, size in zip(starts, sizes, strict=True)
        )
