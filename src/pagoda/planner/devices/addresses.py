"""Addresses that an engine takes, where the system bounds them (`ulimit -v`)."""

from pagoda.base.errors import CapacityError
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.planner.memory.plan import MemoryPlan

# Beyond an engine's memory and the checkpoint: libraries, stacks of threads and what the allocator
# sets aside for each. With two threads and torch's CPU build 755 MiB; with more of them, or CUDA's
# libraries, more.
_MORE = 640 << 20


def needed_addresses(plan: MemoryPlan, file_bytes: int) -> int:
    """Bytes of them, with a mapped checkpoint of `file_bytes` and experts on disk."""
    return file_bytes + plan.total + plan.on_disk + _MORE


def check_addresses(plan: MemoryPlan, file_bytes: int, limit: int | None) -> None:
    """CapacityError where the engine cannot start with `limit` bytes of addresses; None: any."""
    needed = needed_addresses(plan, file_bytes)
    if limit is not None and needed > limit:
        raise CapacityError(
            say(
                "A process may have {limit} of addresses here, and the engine takes about {needed} "
                "of them, those of the mapped checkpoint included. Lift the limit (ulimit -v), or "
                "lower --kv-cache-memory-bytes.",
                limit=format_bytes(limit),
                needed=format_bytes(needed),
            )
        )
