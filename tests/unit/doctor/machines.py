"""Facts of machines that are well, to be made unwell one by one."""

from dataclasses import replace
from typing import Any

from pagoda.doctor.machine.disk import Disk
from pagoda.doctor.machine.gpus import GpuFacts, Gpus
from pagoda.doctor.machine.probe import Cache, Cpu, Kernels, Machine, Memory, Software

GIB = 1 << 30

LAPTOP = Machine(
    cpu=Cpu(
        "Toaster 3000", cores=8, affinity=16, present=16, quota=None, threads=16,
        caches=(Cache(1, 32 << 10, 2), Cache(2, 1 << 20, 2), Cache(3, 32 << 20, 16)),
    ),
    kernels=Kernels(("avx512", "avx2", "generic"), "avx512", None),
    memory=Memory(
        total=32 * GIB, available=24 * GIB, limit=None, swap_total=8 * GIB, swap_used=0,
        pressure=0.0, oom_kills=0, oom_kills_inside=0, shm_free=16 * GIB, commit_left=None,
        huge_pages="madvise",
    ),
    gpus=Gpus(),
    disk=Disk("/home/me/.cache/pagoda/models", 200 * GIB, 2.5e9, "/home/me/model.gguf"),
    software=Software(
        python="3.12.1", pagoda="0.1.0", kernel="6.8.0-45-generic", torch="2.13.0",
        torch_cuda=(13, 0), triton="3.6.0", container="", wsl=None, open_files=1 << 20,
        address_space=None,
    ),
)  # fmt: skip

H100 = GpuFacts(0, "NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, 79 * GIB)
V100 = GpuFacts(0, "Tesla V100-SXM2-32GB", (7, 0), 32 * GIB, 31 * GIB)
RTX_2080_TI = GpuFacts(0, "NVIDIA GeForce RTX 2080 Ti", (7, 5), 11 * GIB, 10 * GIB)


def laptop(**changes: dict[str, Any]) -> Machine:
    """LAPTOP with other facts: `laptop(memory={"swap_used": 1})`."""
    parts = {name: replace(getattr(LAPTOP, name), **facts) for name, facts in changes.items()}
    return replace(LAPTOP, **parts)


def with_gpus(*gpus: GpuFacts, cuda: tuple[int, int] = (13, 0), **changes: Any) -> Machine:
    driver = {"devices": gpus, "driver": "580.95.05", "cuda": cuda}
    return laptop(gpus=driver, **changes)
