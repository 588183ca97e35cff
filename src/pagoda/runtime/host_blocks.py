"""The host's memory for blocks that make room in the KV pool."""

from collections.abc import Sequence

import torch

from pagoda.core.kvcache.layout import SlabLayout
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.core.plan import BlockCopy
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import Device


class HostBlocks:
    """Slots that lie as the pool's blocks do (`SlabLayout`). On a CPU they take memory when they
    are first written.

    On a GPU the memory is pinned, all of it at the start, and copies are queued behind the steps
    before: nothing waits for them.
    """

    def __init__(
        self, cache: CacheMemory, groups: Sequence[GroupSpec], num_slabs: int, device: Device
    ):
        self._cache, self._device = cache, device
        self._layout = SlabLayout(groups, num_slabs)
        self._memory: tuple[torch.Tensor, torch.Tensor] | None = None
        """As the host sees it, and as the device does; both hold it."""
        if num_slabs and device.name != "cpu":
            self._memory = device.host_memory(self._layout.nbytes)

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
        self._memory = None

    def _slots(self) -> list[torch.Tensor]:
        """By group, uint8 [slots, bytes of one]."""
        if self._memory is None:
            self._memory = self._device.host_memory(self._layout.nbytes)
        rows = []
        for group, size in enumerate(self._layout.block_bytes):
            count = self._layout.num_ids(group)
            rows.append(self._memory[0][: count * size].view(count, size))
        return rows
