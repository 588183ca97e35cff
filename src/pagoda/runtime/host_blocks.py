"""The host's memory for blocks that make room in the KV pool."""

from collections.abc import Sequence

import torch

from pagoda.core.kvcache.layout import SlabLayout
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.core.plan import BlockCopy
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import Device


class HostBlocks:
    """Slots that lie as the pool's blocks do (`SlabLayout`); memory is taken when one is first
    written.

    On a GPU it is pinned, all at once, and copies are queued behind the steps before: nothing waits
    for them.
    """

    def __init__(
        self, cache: CacheMemory, groups: Sequence[GroupSpec], num_slabs: int, device: Device
    ):
        self._cache, self._groups, self._device = cache, list(groups), device
        self._layout = SlabLayout(groups, num_slabs)
        self._rows: list[torch.Tensor] | None = None

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do copies in their order."""
        if not copies:
            return
        slots = self._slots()
        for one in copies:
            block, slot = self._cache.rows[one.group][one.block], slots[one.group][one.slot]
            target, source = (slot, block) if one.to_host else (block, slot)
            target.copy_(source, non_blocking=True)

    def discard(self) -> None:
        """Give the memory back, and with it what it held."""
        self._rows = None

    def _slots(self) -> list[torch.Tensor]:
        """By group, uint8 [slots, bytes of one]."""
        if self._rows is None:
            memory, _ = self._device.host_memory(self._layout.nbytes)
            counts = [self._layout.num_ids(group) for group in range(len(self._groups))]
            sizes = self._layout.block_bytes
            self._rows = [
                memory[: count * size].view(count, size)
                for count, size in zip(counts, sizes, strict=True)
            ]
        return self._rows
