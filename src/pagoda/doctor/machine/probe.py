"""The facts of this machine, gathered without torch and without loading anything.

What cannot be read is None or empty, never an error: a doctor that fails helps nobody.
"""

import os
import platform
import re
import resource
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pagoda.base import env, machine
from pagoda.base.errors import ConfigError
from pagoda.base.machine import read_text
from pagoda.doctor.machine.disk import Disk, probe_disk
from pagoda.doctor.machine.gpus import Gpus, probe_gpus
from pagoda.kernels import cpu
from pagoda.version import __version__

_CUDA_OF_TORCH = re.compile(
    r"^(?:cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?)(?:\[[^]]*\])?==(\d+)\.(\d+)"
)

_ROOT = Path("/")
# What each puts into its containers; Kubernetes first, for a pod may run on any of them.
_CONTAINER_MARKS = {
    "kubernetes": "run/secrets/kubernetes.io",
    "docker": ".dockerenv",
    "podman": "run/.containerenv",
}


@dataclass(frozen=True)
class Cache:
    level: int
    nbytes: int
    """Of one of them."""
    shared_by: int
    """Threads that share one."""


@dataclass(frozen=True)
class Cpu:
    name: str
    cores: int
    """Physical ones within this process's affinity mask."""
    affinity: int
    """Hardware threads in the mask."""
    present: int
    """Hardware threads of the machine."""
    quota: float | None
    """CPUs that the container may use; None for all."""
    threads: int
    """What Pagoda starts."""
    caches: tuple[Cache, ...] = ()


@dataclass(frozen=True)
class Kernels:
    sets: tuple[str, ...]
    """Instruction sets that the native kernels have and this CPU runs, best first; none where
    they were not built."""
    isa: str | None
    """The one in use; None where `wanted` is `none` or a set that this build does not know."""
    wanted: str | None
    """PAGODA_CPU_ISA."""


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    total: int
    available: int
    """What can be taken now, the container's limit considered."""
    limit: int | None
    """The container's; None where it may use all of `total`."""
    swap_total: int
    swap_used: int
    pressure: float | None
    """Share of the last ten seconds in which everything waited for memory."""
    oom_kills: int
    """Processes ended for lack of memory since the machine started."""
    oom_kills_inside: int
    """Those of this container."""
    shm_free: int | None
    commit_left: int | None
    """What can still be reserved where the kernel counts strictly; None where it does not."""
    huge_pages: str
    """`always`, `madvise` or `never`."""

    @property
    def usable(self) -> int:
        """The most that Pagoda could have if it were alone."""
        return self.total if self.limit is None else self.limit


@dataclass(frozen=True)
class Software:
    python: str
    pagoda: str
    kernel: str
    torch: str | None
    torch_cuda: tuple[int, int] | None
    """The CUDA that torch was built for; None for a build that only knows the CPU."""
    triton: str | None
    container: str
    """`docker`, `podman`, `kubernetes` or empty."""
    wsl: int | None
    """1 or 2 within Windows."""
    open_files: int | None
    """The most that this process may raise its limit to; None for any number."""
    address_space: int | None
    """Bytes of addresses it may have; None for any number."""


@dataclass(frozen=True)
class Machine:
    cpu: Cpu
    kernels: Kernels
    memory: Memory
    gpus: Gpus
    disk: Disk
    software: Software


def probe(model_file: Path | None = None) -> Machine:
    """This machine as it is now; the disk is the one with `model_file`, or the model cache's."""
    return Machine(
        probe_cpu(),
        probe_kernels(),
        probe_memory(),
        probe_gpus(),
        probe_disk(model_file),
        probe_software(),
    )


def probe_cpu() -> Cpu:
    mask = os.sched_getaffinity(0)
    siblings = {
        read_text(machine.SYS / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or cpu
        for cpu in mask
    }
    return Cpu(
        name=machine.cpu_facts().name,
        cores=len(siblings),
        affinity=len(mask),
        present=os.cpu_count() or len(mask),
        quota=machine.cpu_quota(),
        threads=machine.usable_threads(),
        caches=_caches(min(mask)),
    )


def _caches(cpu: int) -> tuple[Cache, ...]:
    """Caches of data in front of one hardware thread, nearest first."""
    found = []
    for folder in (machine.SYS / f"devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        level, size = read_text(folder / "level"), read_text(folder / "size") or ""
        if read_text(folder / "type") in ("Data", "Unified") and level and size.endswith("K"):
            shared = _list_length(read_text(folder / "shared_cpu_list") or "0")
            found.append(Cache(int(level), int(size[:-1]) << 10, shared))
    return tuple(sorted(found, key=lambda cache: cache.level))


def _list_length(text: str) -> int:
    """How many numbers a kernel's list such as `0-3,8` names."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def probe_kernels() -> Kernels:
    sets, wanted = cpu.instruction_sets(), env.get("PAGODA_CPU_ISA")
    if not sets:
        return Kernels((), None, wanted)
    try:
        native = cpu.native()
    except ConfigError:
        native = None
    return Kernels(sets, None if native is None else native.isa, wanted)


def probe_memory() -> Memory:
    facts, info, limit = machine.cpu_facts(), machine.read_meminfo(), machine.memory_limit()
    kills, inside = machine.oom_kills() or (0, 0)
    strict = read_text(machine.PROC / "sys/vm/overcommit_memory") == "2"
    enabled = read_text(machine.SYS / "kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", enabled)
    swap = info.get("SwapTotal", 0)
    return Memory(
        total=info["MemTotal"],
        available=facts.free_memory,
        limit=limit if limit is not None and limit < info["MemTotal"] else None,
        swap_total=swap,
        swap_used=swap - info.get("SwapFree", 0),
        pressure=machine.memory_pressure(),
        oom_kills=kills,
        oom_kills_inside=inside,
        shm_free=machine.shared_memory_free(),
        commit_left=info["CommitLimit"] - info["Committed_AS"] if strict else None,
        huge_pages=chosen.group(1) if chosen else "",
    )


def probe_software() -> Software:
    kernel = read_text(machine.PROC / "sys/kernel/osrelease") or platform.release()
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Software(
        python=platform.python_version(),
        pagoda=__version__,
        kernel=kernel,
        torch=_version("torch"),
        torch_cuda=_torch_cuda(),
        triton=_version("triton"),
        container=_container(),
        wsl=_wsl(kernel),
        open_files=None if files == resource.RLIM_INFINITY else files,
        address_space=machine.address_limit(),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> tuple[int, int] | None:
    """From the version (2.13.0+cu126), else from the CUDA libraries that it asks for."""
    version = _version("torch") or ""
    build = version.partition("+")[2]
    if build.startswith("cu") and build[2:].isdigit():
        return int(build[2:-1]), int(build[-1])
    if build or not version:
        return None
    for requirement in metadata.requires("torch") or ():
        found = _CUDA_OF_TORCH.match(requirement)
        if found:
            return int(found[1]), int(found[2])
    return None


def _container() -> str:
    return next((name for name, mark in _CONTAINER_MARKS.items() if (_ROOT / mark).exists()), "")


def _wsl(kernel: str) -> int | None:
    name = kernel.lower()
    if "microsoft" not in name:
        return None
    return 2 if "wsl2" in name or "standard" in name else 1
