"""NVIDIA GPUs as the driver's own library (NVML) describes them.

The library comes with the driver, and a dozen of its functions are enough: a binding for them all
would cost every `pagoda doctor` several MB and a dependency.
Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

from pagoda.base import env, machine
from pagoda.base.machine import read_text

_LIBRARY = "libnvidia-ml.so.1"
_NVIDIA = "0x10de"  # PCI vendor
_DISPLAY = "0x03"  # PCI class: VGA (0x0300) and 3D controllers (0x0302)
_NAME_BYTES = 96
_MOST_PROCESSES = 256
_MOST_LINKS = 18  # of an H100; asking past the last one is an error that ends the count
_UNKNOWN = 2**64 - 1
# Bits of the reasons for a lower clock that are no choice of anyone's: a hardware slowdown, heat
# seen by the driver, heat seen by the card, the power supply's brake.
_SLOWDOWN = 0x08 | 0x20 | 0x40 | 0x80

# What the doctor answers to NVML's return codes (nvmlReturn_t); others by their number.
_ERRORS = {
    4: "this user may not use the driver",
    9: "the driver is not loaded",
    15: "a GPU has fallen off the bus",
    18: "the loaded driver and its library are of different versions, as after an update",
}

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


class NvmlError(Exception):
    pass


def probe_gpus() -> Gpus:
    """Every GPU that the driver knows; none, without an error, where no card is there."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return Gpus(error="its driver is not installed here" if _card_on_bus() else "")
    return ask(library)


def ask(library: Any) -> Gpus:
    """`probe_gpus` through an NVML library that is loaded."""
    nvml = _Nvml(library)
    try:
        nvml.call("nvmlInit_v2")
    except NvmlError as error:
        return Gpus(error=str(error) if _card_on_bus() else "")
    try:
        version = nvml.value("nvmlSystemGetCudaDriverVersion_v2", ctypes.c_int)
        return Gpus(
            devices=tuple(_gpu(nvml, index) for index in range(_count(nvml))),
            driver=nvml.text("nvmlSystemGetDriverVersion"),
            cuda=None if version is None else (version // 1000, version % 1000 // 10),
        )
    except NvmlError as error:
        return Gpus(error=str(error))
    finally:
        nvml.call("nvmlShutdown")


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the `_v2` and `_v3` calls."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Nvml:
    """Calls by name; a function that an old driver lacks fails like one that returns an error."""

    def __init__(self, library: Any):
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(f"the driver has no {name}")
        code = function(*arguments)
        if code != 0:
            raise NvmlError(_ERRORS.get(code, f"{name} returned error {code}"))

    def value(self, name: str, kind: Any, *arguments: Any) -> int | None:
        """What the call writes to its last argument; None if it fails."""
        out = kind()
        try:
            self.call(name, *arguments, ctypes.byref(out))
        except NvmlError:
            return None
        return int(out.value)

    def text(self, name: str, *arguments: Any) -> str:
        out = ctypes.create_string_buffer(_NAME_BYTES)
        try:
            self.call(name, *arguments, out, ctypes.c_uint(_NAME_BYTES))
        except NvmlError:
            return ""
        return out.value.decode("utf-8", "replace")


def _count(nvml: _Nvml) -> int:
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    return count.value


def _gpu(nvml: _Nvml, index: int) -> GpuFacts:
    handle = ctypes.c_void_p()
    nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.call(
        "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
    )
    total, free = _memory(nvml, handle)
    reasons = nvml.value("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, handle)
    uncorrected, since_load = ctypes.c_int(1), ctypes.c_int(0)
    errors = nvml.value(
        "nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, handle, uncorrected, since_load
    )
    return GpuFacts(
        index=index,
        name=nvml.text("nvmlDeviceGetName", handle) or "NVIDIA GPU",
        capability=(major.value, minor.value),
        total_memory=total,
        free_memory=free,
        visible=_is_visible(index, nvml.text("nvmlDeviceGetUUID", handle)),
        processes=_processes(nvml, handle),
        links=_links(nvml, handle),
        slowed=bool((reasons or 0) & _SLOWDOWN),
        memory_errors=errors or 0,
    )


def _memory(nvml: _Nvml, handle: ctypes.c_void_p) -> tuple[int | None, int | None]:
    memory = _Memory()
    try:
        nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    except NvmlError:
        return None, None
    return memory.total, memory.free


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


def _processes(nvml: _Nvml, handle: ctypes.c_void_p) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for kind in ("Compute", "Graphics"):
        count = ctypes.c_uint(_MOST_PROCESSES)
        rows = (_Process * _MOST_PROCESSES)()
        try:
            nvml.call(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle, ctypes.byref(count), rows)
        except NvmlError:
            continue
        for row in rows[: count.value]:
            used = None if row.used == _UNKNOWN else row.used
            name = read_text(machine.PROC / str(row.pid) / "comm") or ""
            found[row.pid] = GpuProcess(row.pid, name, used)
    return tuple(sorted(found.values(), key=lambda process: -(process.memory or 0)))


def _links(nvml: _Nvml, handle: ctypes.c_void_p) -> int:
    up = 0
    for link in range(_MOST_LINKS):
        active = nvml.value("nvmlDeviceGetNvLinkState", ctypes.c_uint, handle, ctypes.c_uint(link))
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
