"""What NVML says becomes facts, whatever of it an old driver or a card lacks."""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from pagoda.base import machine
from pagoda.doctor.machine.gpus import GpuProcess, Gpus, probe_gpus
from tests.unit.doctor.fake_nvml import NOT_AVAILABLE, NOT_SUPPORTED, FakeNvml

GIB = 1 << 30
A100 = {
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-aaaa1111",
    "capability": (8, 0),
    "memory": (80 * GIB, 60 * GIB, 20 * GIB),
    "compute": [(4242, 19 * GIB), (7, GIB // 2)],
    "graphics": [(99, NOT_AVAILABLE)],
    "links": [1, 1, 0, 1],
    "reasons": 0x1,  # idle
}
RTX_3090 = {
    "name": "NVIDIA GeForce RTX 3090",
    "uuid": "GPU-bbbb2222",
    "capability": (8, 6),
    "memory": (24 * GIB, 24 * GIB, 0),
}


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without cards on its bus; process 4242 is python3."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "SYS", tmp_path / "sys")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "proc/4242").mkdir(parents=True)
    (tmp_path / "proc/4242/comm").write_text("python3\n")
    return tmp_path


def plug_in(box: Path, vendor: str = "0x10de", kind: str = "0x030200") -> None:
    device = box / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNvml], Gpus]:
    """What is found through a driver's library."""

    def probe(library: FakeNvml) -> Gpus:
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return probe_gpus()

    return probe


def test_everything_an_a100_says(ask):
    library = FakeNvml(A100, RTX_3090)
    found = ask(library)
    assert (found.driver, found.cuda, found.error) == ("580.95.05", (13, 0), "")
    first, second = found.devices
    assert (first.name, first.capability) == ("NVIDIA A100-SXM4-80GB", (8, 0))
    assert (first.total_memory, first.free_memory) == (80 * GIB, 60 * GIB)
    assert first.processes == (
        GpuProcess(4242, "python3", 19 * GIB),
        GpuProcess(7, "", GIB // 2),
        GpuProcess(99, "", None),
    )
    assert (first.links, first.slowed, first.memory_errors) == (3, False, 0)
    assert first.native == ("float16", "int8", "bfloat16")
    assert (second.index, second.processes, second.links) == (1, (), 0)
    assert library.shut_down


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ((6, 1), ()),
        ((7, 0), ("float16",)),
        ((7, 5), ("float16", "int8")),
        ((8, 6), ("float16", "int8", "bfloat16")),
        ((8, 9), ("float16", "int8", "bfloat16", "fp8")),
        ((12, 0), ("float16", "int8", "bfloat16", "fp8", "fp4")),
    ],
)
def test_native_types(ask, capability, native):
    (gpu,) = ask(FakeNvml({**RTX_3090, "capability": capability})).devices
    assert gpu.native == native


def test_heat_and_errors_of_memory(ask):
    (gpu,) = ask(FakeNvml({**RTX_3090, "reasons": 0x40, "errors": 3})).devices
    assert gpu.slowed
    assert gpu.memory_errors == 3
    (capped,) = ask(FakeNvml({**RTX_3090, "reasons": 0x4})).devices  # its own power cap
    assert not capped.slowed


def test_an_old_driver_that_lacks_functions(ask):
    missing = (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlSystemGetCudaDriverVersion_v2",
    )
    found = ask(FakeNvml(A100, driver="418.226", missing=missing))
    assert (found.driver, found.cuda, found.error) == ("418.226", None, "")
    assert found.devices[0].processes == ()


def test_a_card_that_shares_the_memory_of_the_machine(ask):
    (gpu,) = ask(FakeNvml({**RTX_3090, "memory": None})).devices
    assert gpu.total_memory is gpu.free_memory is None


def test_a_card_that_stops_answering_is_named_and_nvml_closed(ask):
    library = FakeNvml(A100, codes={"nvmlDeviceGetHandleByIndex_v2": 15})
    assert ask(library) == Gpus(error="a GPU has fallen off the bus")
    assert library.shut_down


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "not loaded"), (18, "different versions"), (4, "this user"), (999, "error 999")],
)
def test_a_driver_that_does_not_start(ask, box, code, words):
    library = FakeNvml(codes={"nvmlInitWithFlags": code})
    assert ask(library) == Gpus()  # no card, so nothing is wrong
    plug_in(box)
    assert words in ask(library).error


@pytest.mark.parametrize(
    ("vendor", "kind", "error"),
    [
        ("0x10de", "0x030000", "its driver is not installed here"),
        ("0x10de", "0x040300", ""),  # a sound device of the same vendor
        ("0x1002", "0x030000", ""),
    ],
)
def test_a_card_without_its_library(box, monkeypatch, vendor, kind, error):
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert probe_gpus() == Gpus()
    plug_in(box, vendor, kind)
    assert probe_gpus() == Gpus(error=error)


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        (None, [True, True]),
        ("0,1", [True, True]),
        ("1", [False, True]),
        ("GPU-bbbb", [False, True]),
        ("", [False, False]),
        ("-1", [False, False]),
        ("0,-1,1", [True, False]),
        ("NoDevFiles", [False, False]),
    ],
)
def test_cuda_visible_devices(ask, monkeypatch, listed, visible):
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    found = ask(FakeNvml(A100, RTX_3090, codes={"nvmlDeviceGetNvLinkState": NOT_SUPPORTED}))
    assert [gpu.visible for gpu in found.devices] == visible
