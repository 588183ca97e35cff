"""Blocks go to the host's memory and come back as they were, in the order that a plan says."""

import numpy as np
import pytest

from pagoda.core.kvcache.spec import KVGroupSpec, StateGroupSpec
from pagoda.core.plan import BlockCopy
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.host_blocks import HostBlocks

GROUPS = [
    KVGroupSpec("full", (0, 2), 2, 8, 16, kv_dtype="float32"),
    StateGroupSpec((1,), ((3, 7), (5, 3, 2)), 16),
]


@pytest.fixture
def memories() -> tuple[CacheMemory, HostBlocks]:
    device = CpuDevice()
    cache = CacheMemory(GROUPS, 6, device)
    return cache, HostBlocks(cache, GROUPS, 4, device)


def fill(cache: CacheMemory, group: int, block: int, value: int) -> None:
    size = GROUPS[group].block_bytes
    cache.write(group, [block], np.full((1, size), value, np.uint8))


@pytest.mark.parametrize("group", [0, 1])
def test_blocks_come_back(memories, group):
    cache, host = memories
    fill(cache, group, 2, 7)
    host.copy([BlockCopy(group, 2, 1, to_host=True)])
    fill(cache, group, 2, 9)
    host.copy([BlockCopy(group, 3, 1, to_host=False)])
    assert (cache.read(group, [3]) == 7).all() and (cache.read(group, [2]) == 9).all()


def test_the_order_counts(memories):
    """A slot is read, and then written; a block is written, and then read."""
    cache, host = memories
    fill(cache, 0, 2, 7)
    fill(cache, 0, 3, 8)
    host.copy([BlockCopy(0, 2, 1, to_host=True)])
    host.copy(
        [
            BlockCopy(0, 4, 1, to_host=False),
            BlockCopy(0, 3, 1, to_host=True),
            BlockCopy(0, 4, 2, to_host=True),
            BlockCopy(0, 2, 1, to_host=False),
            BlockCopy(0, 3, 2, to_host=False),
        ]
    )
    assert [int(cache.read(0, [block])[0, 0]) for block in (4, 2, 3)] == [7, 8, 7]


def test_memory_is_given_back(memories):
    cache, host = memories
    host.discard()
    fill(cache, 0, 2, 7)
    host.copy([BlockCopy(0, 2, 1, to_host=True)])
    host.discard()
    host.copy([BlockCopy(0, 3, 1, to_host=False)])
    assert (cache.read(0, [3]) == 0).all()
