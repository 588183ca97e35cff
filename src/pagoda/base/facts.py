"""What is known of the machine, as plain numbers; measured by `runtime.device`, or given."""

from dataclasses import dataclass
from typing import Literal

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class DeviceFacts:
    device: DeviceName
    total_memory: int
    """Bytes: RAM or the container's limit, whichever is lower; on a GPU its memory."""
    free_memory: int
    """Bytes that can be taken now without pushing anything out."""
    num_threads: int
    """Threads worth starting: affinity and the container's CPU quota considered."""
    supports_bf16: bool = True
    name: str = ""
    capability: int = 0
    """Of a GPU, as 90 for 9.0; 0 where that is not known."""
    host_memory: int | None = None
    """Of a GPU: free bytes of the machine's own memory; None where that is not known."""
    packed_storages: frozenset[str] = frozenset()
    """Storage formats that the device's kernels compute with bit for bit as they are stored."""
