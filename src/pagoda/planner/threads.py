"""How many threads compute on a CPU, and beside which of its memories."""

from collections.abc import Sequence

from pagoda.base.facts import DeviceFacts, MemoryNode
from pagoda.base.words import say, with_commas
from pagoda.config.engine import EngineConfig
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import NodeThreads

MOST_NODES = 16
"""That the kernels' pool takes."""


def resolve_threads(
    config: EngineConfig, facts: DeviceFacts, reasons: list[Reason]
) -> tuple[int, tuple[NodeThreads, ...]]:
    """Threads, and where they are, if weights are to lie beside the threads that read them."""
    threads = config.device.threads
    if not isinstance(threads, int):
        threads = facts.num_threads
        reasons.append(Reason("threads", threads, _why(threads, facts.nodes)))
    if config.device.numa == "off" or len(facts.nodes) < 2 or facts.device != "cpu":
        return threads, ()
    why = _whole(config, facts.nodes, threads)
    if why:
        reasons.append(Reason("numa", "off", why))
        return threads, ()
    found = _dealt(facts.nodes, threads)
    dealt = with_commas(
        say("{threads} threads on node {node}", threads=node.threads, node=node.memory)
        for node in found
    )
    why = say("{dealt}; they read the weights in its memory", dealt=dealt)
    reasons.append(Reason("numa", "auto", why))
    return threads, found


def _why(threads: int, nodes: Sequence[MemoryNode]) -> str:
    cores = sum(len(node.cores) for node in nodes)
    cpus = sum(len(node.cpus) for node in nodes)
    if threads > cores > 0:
        return say("measured to be faster than one on each of {cores} cores", cores=cores)
    if cores < cpus and threads == cores:
        return say("one a core; {threads} were measured to be no faster", threads=cpus)
    return say("affinity and container quota")


def _whole(config: EngineConfig, nodes: Sequence[MemoryNode], threads: int) -> str:
    """Why several memories are treated as one; empty where they are not."""
    if config.parallel.num_ranks > 1:
        return say("ranks share the machine's cores")
    if len(nodes) > MOST_NODES:
        return say("the kernels' threads know {most} nodes at most", most=MOST_NODES)
    if threads < len(nodes):
        return say("{threads} threads for {nodes} nodes", threads=threads, nodes=len(nodes))
    return ""


def _dealt(nodes: Sequence[MemoryNode], threads: int) -> tuple[NodeThreads, ...]:
    """`threads` (one at least for each) by the numbers of cores."""
    cores = [len(node.cores) for node in nodes]
    counts = [1] * len(nodes)
    for _ in range(threads - len(nodes)):
        place = min(range(len(nodes)), key=lambda i: ((counts[i] + 1) / cores[i], i))
        counts[place] += 1
    return tuple(
        NodeThreads(node.number, node.cpus, count)
        for node, count in zip(nodes, counts, strict=True)
    )
