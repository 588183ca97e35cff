"""From the host to a GPU that is not there."""

import numpy as np
import torch

from pagoda.kernels.transfer import to_tensor


def test_a_gpu_gets_pinned_memory_and_is_not_waited_for(monkeypatch):
    calls = []

    class Recorder:
        def pin_memory(self):
            calls.append("pin")
            return self

        def to(self, device, non_blocking=False):
            calls.append((str(device), non_blocking))
            return self

    monkeypatch.setattr(torch, "from_numpy", lambda values: Recorder())
    to_tensor(np.arange(3), torch.device("cuda", 0))
    assert calls == ["pin", ("cuda:0", True)]


def test_a_cpu_keeps_the_memory():
    values = np.arange(3)
    to_tensor(values, torch.device("cpu"))[1] = 7
    assert values.tolist() == [0, 7, 2]
    assert to_tensor(np.arange(6)[::2], torch.device("cpu")).tolist() == [0, 2, 4]
