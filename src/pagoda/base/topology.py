"""Which CPUs share a core, and which a memory, as Linux tells it in /sys."""

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from pagoda.base.facts import MemoryNode


def memory_nodes(sys: Path, cpus: Collection[int]) -> tuple[MemoryNode, ...]:
    """The memories that any of these CPUs are beside, by number, each with those CPUs.

    A CPU of which /sys says nothing is a core of its own, beside memory 0.
    """
    nodes: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    memory_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (sys / "devices/system/node").glob("node[0-9]*")
        for cpu in _listed(folder / "cpulist")
    }
    for cpu in sorted(cpus):
        siblings = _listed(sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        nodes[memory_of.get(cpu, 0)][min(siblings, default=cpu)].append(cpu)
    return tuple(
        MemoryNode(number, tuple(tuple(core) for core in cores.values()))
        for number, cores in sorted(nodes.items())
    )


def _listed(path: Path) -> list[int]:
    """The numbers of a kernel's list such as `0-3,8`; none where the file cannot be read."""
    try:
        parts = [part for part in path.read_text().strip().split(",") if part]
    except OSError:
        return []
    spans = [part.partition("-") for part in parts]
    return [one for low, _, high in spans for one in range(int(low), int(high or low) + 1)]
