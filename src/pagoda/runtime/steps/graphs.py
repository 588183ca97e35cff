"""CUDA graphs: work that was queued once on a GPU, and is queued again with one call."""

from collections.abc import Callable
from typing import Protocol

import torch


class Graph(Protocol):
    """Work on memory that stays where it is."""

    def replay(self) -> None:
        """Queue it again."""


class GraphMaker(Protocol):
    def __call__(self, work: Callable[[], None]) -> Graph:
        """The graph of what `work` queues; it is called once, and nothing is computed.

        RuntimeError where it does what no graph can hold, such as waiting for the device. Graphs
        of one maker share memory: the results of one last until another is replayed.
        """


class CudaGraphs:
    """Makes graphs on one GPU; all memory between their inputs and outputs is one pool."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Callable[[], None]) -> Graph:
        # torch.cuda.graph would empty the allocator's cache and collect garbage each time.
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Other threads may go on using the device.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                _abandon(graph)
                raise
            graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph


def _abandon(graph: "torch.cuda.CUDAGraph") -> None:
    """End a capture that went wrong, which the driver then reports once more."""
    try:
        graph.capture_end()
    except RuntimeError:
        graph.reset()
