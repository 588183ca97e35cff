"""A GPU that tests play, on a CPU; run as a module: the process of a rank that has one.

PLAYED_FREE: bytes that are free on each rank's once the weights are loaded. PLAYED_SHORT: the rank
that has no memory for a step.
"""

import os
from types import SimpleNamespace

import torch

from pagoda.base.facts import DeviceFacts
from pagoda.runtime import device as devices
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.steps import captured

GIB = 1 << 30
PEAKS = (200 << 20, 300 << 20)
"""Bytes that a step takes on each rank."""


class PlayedGpu(CpuDevice):
    """Runs ahead: what was computed is seen by who waits for it. Makes graphs."""

    name = "cuda"
    runs_ahead = True
    count = 2

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.rank, self.free = rank, 7 * GIB
        self.replays = self.profiled = 0

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cuda", 8 * GIB, self.free, 1, name="Played", capability=90)

    def peak_of(self, work) -> int:
        if os.environ.get("PLAYED_SHORT") == str(self.rank):
            raise torch.OutOfMemoryError("CUDA out of memory, as played")
        self.profiled += 1
        work()
        return PEAKS[self.rank]

    def give_back(self) -> None:
        free = os.environ.get("PLAYED_FREE", "").split()
        self.free = int(free[self.rank]) if free else self.free

    def memory_used(self) -> int:
        return 0

    def fetch(self, *tensors):
        copies = [tensor.clone().numpy() for tensor in tensors]
        return lambda: copies

    def graph_maker(self):
        def make(work):
            def replay() -> None:
                self.replays += 1
                work()

            return SimpleNamespace(replay=replay)

        return lambda: make


if __name__ == "__main__":
    from pagoda.engine.ranks import main as rank

    devices.make_device = lambda name, index: PlayedGpu(index)
    # Only rank 0's matters: it says when.
    captured._SHARE = 0.0
    rank.main()
