"""Memory that is given back, and comes back."""

import mmap

import torch
from torch import nn

from pagoda.base.machine import anonymous_bytes
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.sleep import OffloadedTensors, tensors_of


def test_a_discarded_pool_gives_its_pages_back_and_keeps_its_place():
    device = CpuDevice()
    pool = device.reserve((64 << 20,), torch.uint8)
    address = pool.data_ptr()
    pool.fill_(7)
    full = anonymous_bytes()
    device.discard(pool)
    assert anonymous_bytes() < full - (48 << 20)
    device.restore(pool)
    assert pool.data_ptr() == address and int(pool[:: mmap.PAGESIZE].sum()) == 0


def test_a_runner_computes_the_same_behind_its_sleep(driver, make_request):
    request = make_request("a", 30, temperature=0.0)
    driver.add(request)
    driver.finish(["a"], 6)
    expected = driver.tokens["a"]
    driver.free("a")
    driver.step({})
    driver.runner.sleep()
    assert not any(cache.any() for pair in driver.runner.cache.layers for cache in pair)
    driver.runner.wake_up()
    driver.add(request)
    driver.finish(["a"], 6)
    assert driver.tokens["a"] == expected


class Packed:
    """As weights in a format of their own lie."""

    def __init__(self) -> None:
        self.parts = (torch.arange(6.0), {"scales": torch.ones(3)})


Packed.__module__ = "pagoda.test"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.arange(24.0).reshape(4, 6)
        self.rows = self.weight[1:3]
        self.packed = Packed()
        self.child = nn.Linear(3, 2)


def test_weights_leave_their_tensors_and_come_back_into_them():
    layer = Layer()
    tensors = list(tensors_of(layer))
    assert len(tensors) == 6
    before = [tensor.detach().clone() for tensor in tensors]
    away = OffloadedTensors(tensors)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    away.restore()
    for tensor, content in zip(tensors, before, strict=True):
        assert torch.equal(tensor, content)
    layer.weight[1, 0] = -1.0
    assert layer.rows[0, 0] == -1.0, "views are views as before"
