"""NVIDIA GPUs as the driver's own library (NVML) describes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from pagoda.base import env, machine
from pagoda.base.machine import read_text

_NVIDIA = "0x10de"  # PCI vendor
_DISPLAY = "0x03"  # PCI class: VGA (0x0300) and 3D controllers (0x0302)
# Reasons for a lower clock that are no choice of anyone's.
_SLOWDOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)

# What the doctor answers to NVML's errors; others by their number.
_ERRORS = {
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not use the driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "its driver is not installed here",
    pynvml.NVML_ERROR_GPU_IS_LOST: "a GPU has fallen off the bus",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the loaded driver and its library are of different versions, as after an update"
    ),
}

_T = TypeVar("_T")

# Lowest compute capability whose matrix units take each type.
_NATIVE = {
    "float16": (7, 0),
    "int8": (7, 2),
    "bfloat16": (8, 0),
    "fp8": (8, 9),
    "fp4": (10, 0),
}


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    name: str
    """Empty where /proc does not know it: a process outside this container."""
    memory: int | None
    """Bytes; None where the driver does not say (Windows and WSL)."""


@dataclass(frozen=True)
class GpuFacts:
    index: int
    name: str
    capability: tuple[int, int]
    total_memory: int | None
    """Bytes; None where the GPU shares the machine's memory."""
    free_memory: int | None
    visible: bool = True
    """CUDA_VISIBLE_DEVICES leaves it to this process."""
    processes: tuple[GpuProcess, ...] = ()
    links: int = 0
    """NVLinks that are up."""
    slowed: bool = False
    """Heat or power holds the clocks down now."""
    memory_errors: int = 0
    """Uncorrectable ones since the driver was loaded."""

    @property
    def native(self) -> tuple[str, ...]:
        """Types that its matrix units multiply."""
        return tuple(name for name, least in _NATIVE.items() if self.capability >= least)


@dataclass(frozen=True)
class Gpus:
    devices: tuple[GpuFacts, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    error: str = ""
    """Why the driver could not be asked, though it or a card is there."""


def probe_gpus() -> Gpus:
    """Every GPU that the driver knows; none, without an error, where no card is there."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(error=_reason(error) if _card_on_bus() else "")
    try:
        version = _known(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Gpus(
            devices=tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())),
            driver=_known(pynvml.nvmlSystemGetDriverVersion) or "",
            cuda=None if version is None else (version // 1000, version % 1000 // 10),
        )
    except pynvml.NVMLError as error:
        return Gpus(error=_reason(error))
    finally:
        pynvml.nvmlShutdown()


def _reason(error: pynvml.NVMLError) -> str:
    return _ERRORS.get(error.value, f"its driver returned error {error.value}")


def _known(call: Callable[..., _T], *arguments: Any) -> _T | None:
    """What the call returns; None where the card does not know it, or an old driver has no such."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def _gpu(index: int) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = _known(pynvml.nvmlDeviceGetMemoryInfo, handle)
    reasons = _known(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    errors = _known(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC,
    )  # fmt: skip
    return GpuFacts(
        index=index,
        name=_known(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU",
        capability=(major, minor),
        total_memory=memory.total if memory else None,
        free_memory=memory.free if memory else None,
        visible=_is_visible(index, _known(pynvml.nvmlDeviceGetUUID, handle) or ""),
        processes=_processes(handle),
        links=_links(handle),
        slowed=bool((reasons or 0) & _SLOWDOWN),
        memory_errors=errors or 0,
    )


def _is_visible(index: int, uuid: str) -> bool:
    if env.is_empty("CUDA_VISIBLE_DEVICES"):
        return False
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return True
    for word in listed.split(","):
        entry = word.strip()
        if entry == str(index) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            return True
        if not entry.isdigit() and not entry.startswith(("GPU-", "MIG-")):
            return False  # as CUDA does: whatever follows an entry that is none does not count
    return False


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for running in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    ):
        for process in _known(running, handle) or ():
            name = read_text(machine.PROC / str(process.pid) / "comm") or ""
            found[process.pid] = GpuProcess(process.pid, name, process.usedGpuMemory)
    return tuple(sorted(found.values(), key=lambda process: -(process.memory or 0)))


def _links(handle: Any) -> int:
    """NVLinks that are up; asking past a card's last one is an error."""
    up = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = _known(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break
        up += active
    return up


def _card_on_bus() -> bool:
    for device in (machine.SYS / "bus/pci/devices").glob("*"):
        if read_text(device / "vendor") == _NVIDIA:
            kind = read_text(device / "class") or ""
            if kind.startswith(_DISPLAY):
                return True
    return False
