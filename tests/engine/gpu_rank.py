"""A GPU that tests play, on a CPU; run as a module: the process of a rank that has one."""

from types import SimpleNamespace

from pagoda.base.facts import DeviceFacts
from pagoda.runtime import device as devices
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.steps import captured

GIB = 1 << 30


class PlayedGpu(CpuDevice):
    """Runs ahead: what was computed is seen by who waits for it. Makes graphs."""

    name = "cuda"
    runs_ahead = True
    count = 2

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cuda", 8 * GIB, 7 * GIB, 1, name="Played", capability=90)

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

    devices.make_device = lambda name, index: PlayedGpu()
    # Only rank 0's matters: it says when.
    captured._SHARE = 0.0
    rank.main()
