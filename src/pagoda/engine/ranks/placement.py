"""Where Ray should put a model's ranks, and which bundle each takes. Does not import Ray."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pagoda.config.parallel import ParallelConfig


@dataclass(frozen=True)
class Node:
    """One of a Ray cluster."""

    name: str
    """As Ray names it."""
    address: str
    resources: Mapping[str, float]
    """All that it has, taken or free."""


@dataclass(frozen=True)
class Wanted:
    """What the ranks of one model ask for."""

    parallel: ParallelConfig
    resource: Literal["CPU", "GPU"]
    each: int = 1
    """For one rank."""

    def bundles(self, nodes: Sequence[Node], home: str | None = None) -> list[dict[str, float]]:
        """One for each stage, for a bundle lies on one node; or one for each rank, where stages do
        not fit on nodes. The first is for the node `home`, where rank 0 is."""
        size, stages = self.parallel.tensor_parallel_size, self.parallel.pipeline_parallel_size
        if self._fit(nodes, home, self.each * size, stages):
            return [{self.resource: float(self.each * size)} for _ in range(stages)]
        return [{self.resource: float(self.each)} for _ in range(size * stages)]

    def missing(self, nodes: Sequence[Node], home: str | None = None) -> str:
        """What the cluster lacks, in sentences; empty where all ranks fit, if nobody else has
        something there."""
        if self._fit(nodes, home, self.each, self.parallel.num_ranks):
            return ""
        kind = f"{self.resource}s"
        wanted = f"{self.parallel.sizes} needs {self.each * self.parallel.num_ranks} {kind} of Ray"
        have = ", ".join(f"{self.room(node):g} on node {node.address}" for node in nodes) or "none"
        own = [node for node in nodes if node.name == home]
        if own and self.room(own[0]) < self.each:
            wanted += f", {self.each} of them on the engine's own node {own[0].address}"
        return f"{wanted}, and its cluster has: {have}. Lower it, or add nodes (`ray start`)."

    def slots(self, bundles: Sequence[Mapping[str, float]], places: Sequence[str]) -> list[int]:
        """Each rank's bundle. `places` are the bundles' nodes; ranks of one node follow each other,
        so that stages end where nodes do."""
        count = Counter(places)
        order = sorted(
            range(1, len(bundles)),
            key=lambda i: (places[i] != places[0], -count[places[i]], places[i], i),
        )
        return [
            index
            for index in (0, *order)
            for _ in range(int(bundles[index].get(self.resource, 0)) // self.each)
        ][: self.parallel.num_ranks]

    def room(self, node: Node) -> float:
        return node.resources.get(self.resource, 0.0)

    def _fit(self, nodes: Sequence[Node], home: str | None, size: int, count: int) -> bool:
        rooms = {node.name: int(self.room(node)) // size for node in nodes}
        return sum(rooms.values()) >= count and (home is None or rooms.get(home, 0) > 0)


def blocks_of(places: Sequence[str]) -> int:
    """How many ranks that follow each other share a node, if it is as many on each; else 1."""
    counts = set(Counter(places).values())
    size = counts.pop()
    whole = not counts and all(
        len(set(places[first : first + size])) == 1 for first in range(0, len(places), size)
    )
    return size if whole else 1


def split_stages(places: Sequence[str], parallel: ParallelConfig) -> list[int]:
    """Stages whose ranks are on more than one node; `places` are all ranks' nodes."""
    size = parallel.tensor_parallel_size
    return [
        stage
        for stage in range(parallel.pipeline_parallel_size)
        if len(set(places[stage * size : (stage + 1) * size])) > 1
    ]
