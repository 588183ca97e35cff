from types import SimpleNamespace

import pytest
import torch

from pagoda.base.errors import ConfigError, MissingLibraryError
from pagoda.base.machine import cpu_facts
from pagoda.planner.resolve import device_name
from pagoda.runtime import gpu_build
from pagoda.runtime.device import CudaDevice, make_device


@pytest.fixture
def one_gpu(monkeypatch):
    """torch says that there is one."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: [])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float32", torch.float32),
        ("int8", torch.int8),
    ],
)
def test_dtype_names(name, dtype):
    assert make_device("cpu").dtype(name) is dtype


def test_unknown_names_say_what_is_known():
    with pytest.raises(ConfigError, match="int3.*float16"):
        make_device("cpu").dtype("int3")
    with pytest.raises(ConfigError, match="tpu.*cpu or cuda"):
        device_name("tpu", lambda: True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_one_clear_error():
    with pytest.raises(ConfigError, match="no usable NVIDIA GPU"):
        make_device("cuda")


def test_a_rank_without_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: [])
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


def test_a_gpu_measures_what_work_takes_beside_what_was_held(monkeypatch, one_gpu):
    calls = []
    held, peak = 700, 1900
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    device = CudaDevice()
    assert device.peak_of(lambda: calls.append("work")) == 1200
    assert calls == ["synchronize", "reset", "work", "synchronize"]
    assert make_device("cpu").peak_of(lambda: calls.append("cpu")) is None
    assert calls[-1] != "cpu"


def test_a_gpu_reads_the_hosts_memory(monkeypatch, one_gpu):
    calls = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda *args: calls.append(("register", *args)),
        cudaHostUnregister=lambda address: calls.append(("unregister", address)),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    # As torch takes it, but for the device.
    monkeypatch.setattr(torch, "as_tensor", lambda memory, device: memory)
    device = CudaDevice()
    host, seen = device.host_memory(5000)
    assert (host.dtype, host.shape, host.device.type) == (torch.uint8, (5000,), "cpu")
    assert calls == [("register", host.data_ptr(), 5000, 3)]
    interface, address = seen.__cuda_array_interface__, host.data_ptr()
    assert interface["data"] == (address, False)
    assert (interface["shape"], interface["typestr"]) == ((5000,), "|u1")
    del host, seen
    assert calls[1:] == [("unregister", address)]


@pytest.mark.parametrize(("capability", "number"), [((7, 5), 75), ((12, 0), 120)])
def test_facts_of_a_gpu(monkeypatch, one_gpu, capability, number):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    facts = CudaDevice().facts()
    assert (facts.device, facts.free_memory, facts.total_memory) == ("cuda", 3 << 30, 8 << 30)
    assert facts.capability == number
    assert facts.supports_bf16 == (number >= 80)


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "serves"),
    [(70, False), (75, True), (80, True), (86, True), (87, True), (89, True), (90, True),
     (103, True), (120, True), (121, True), (130, True), (53, False)],
)  # fmt: skip
def test_what_a_build_of_torch_runs_on(capability, serves):
    """Machine code of 8.6 runs on 8.9; only the driver makes code for another generation."""
    assert gpu_build.serves(CUDA_13, capability) is serves


def test_code_for_one_capability_alone():
    assert gpu_build.serves(["sm_90a"], 90) and not gpu_build.serves(["sm_100a"], 103)
    assert not gpu_build.serves(["sm_90"], 100) and gpu_build.serves(["sm_100f"], 103)
    assert not gpu_build.serves(["gfx90a"], 90)


@pytest.mark.parametrize(
    ("capability", "advice"), [((7, 0), r"an older one: .*\+cu126"), ((13, 0), "a newer one")]
)
def test_a_torch_that_was_not_built_for_a_gpu_is_one_clear_error(
    monkeypatch, one_gpu, capability, advice
):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "GPU of theirs")
    with pytest.raises(MissingLibraryError, match=advice) as error:
        CudaDevice()
    assert "was not built for GPU of theirs" in str(error.value)
    assert "sm_75, sm_90" in str(error.value) and "--device cpu" in str(error.value)
