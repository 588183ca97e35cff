"""What is known of the machine, as plain numbers; measured by `runtime.device`, or given."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

DeviceName = Literal["cpu", "cuda"]


class MemoryNode(NamedTuple):
    """CPUs that this process may use, and that are beside the same memory."""

    number: int
    """Linux's number of that memory."""
    cores: tuple[tuple[int, ...], ...]
    """Each with its hardware threads."""

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(cpu for core in self.cores for cpu in core)


@dataclass(frozen=True)
class DeviceFacts:
    device: DeviceName
    total_memory: int
    """Bytes: RAM or the container's limit, whichever is lower; on a GPU its memory."""
    free_memory: int
    """Bytes that can be taken now without pushing anything out."""
    num_threads: int
    """Threads worth starting: one a core within affinity and the container's CPU quota, or more
    where it was measured that a core computes faster with two."""
    supports_bf16: bool = True
    name: str = ""
    capability: int = 0
    """A GPU's compute capability, as 90 for 9.0; 0 where that is not known."""
    host_memory: int | None = None
    """Beside a GPU: free bytes of the machine's own memory; None where that is not known."""
    packed_storages: frozenset[str] = frozenset()
    """Storage formats that the device's kernels compute with bit for bit as they are stored."""
    nodes: tuple[MemoryNode, ...] = ()
    """A CPU's memories; none where they are not known, and of a GPU."""
    attention_libraries: frozenset[str] = frozenset()
    """On a GPU: external kernels for attention that can be used, by their backends' names."""

    @property
    def most_threads(self) -> int:
        """Threads that can run at once."""
        cores = sum(len(node.cores) for node in self.nodes)
        cpus = sum(len(node.cpus) for node in self.nodes)
        return max(self.num_threads, cpus) if self.num_threads >= cores else self.num_threads
