import pytest
import torch

from pagoda.base.errors import ConfigError
from pagoda.base.machine import cpu_facts
from pagoda.runtime.device import make_device


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", torch.float16),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float", torch.float32),
        ("auto", torch.bfloat16),
    ],
)
def test_dtype_names(name, dtype):
    assert make_device("cpu").dtype(name) is dtype


def test_unknown_names_say_what_is_known():
    with pytest.raises(ConfigError, match="int3.*float16"):
        make_device("cpu").dtype("int3")
    with pytest.raises(ConfigError, match="tpu.*cpu or cuda"):
        make_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_one_clear_error():
    with pytest.raises(ConfigError, match="no usable NVIDIA GPU"):
        make_device("cuda")
    assert make_device("auto").name == "cpu"


def test_a_rank_without_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert str(make_device("cuda", 1).torch_device) == "cuda:1"
    assert current == [1], "kernels run on the current device"
    with pytest.raises(ConfigError, match="no GPU 2; torch finds 2"):
        make_device("cuda", 2)


def test_cpu_facts_and_threads():
    device = make_device("cpu")
    assert device.facts().total_memory == cpu_facts().total_memory
    before = torch.get_num_threads()
    try:
        device.set_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        device.set_threads(before)
    assert device.memory_used() > 0
