"""Facts are read from /proc, /sys and the packages' metadata; what is not there is not known."""

from importlib import metadata
from pathlib import Path

import pytest

from pagoda.base import machine
from pagoda.doctor.machine import probe
from pagoda.doctor.machine.probe import Cache

GIB = 1 << 30
MEMINFO = """\
MemTotal:       32768 kB
MemFree:         1000 kB
MemAvailable:   16384 kB
SwapTotal:       4096 kB
SwapFree:        1024 kB
CommitLimit:    20480 kB
Committed_AS:   24576 kB
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 32 MiB with two cores of two threads each."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/cpuinfo": "model name\t: Toaster\n",
        "proc/self/cgroup": "0::/\n",
        "proc/vmstat": "pswpin 7\noom_kill 0\n",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    }
    for cpu in range(4):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/thread_siblings_list"] = "0,2\n" if cpu % 2 == 0 else "1,3\n"
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", "0,2"), (1, "Instruction", "32K", "0,2"),
             (2, "Unified", "2048K", "0,2"), (3, "Unified", "36864K", "0-3")]
        ):  # fmt: skip
            cache = f"{folder}/cache/index{index}"
            files |= {
                f"{cache}/level": f"{level}\n", f"{cache}/type": f"{kind}\n",
                f"{cache}/size": f"{size}\n", f"{cache}/shared_cpu_list": f"{shared}\n",
            }  # fmt: skip
    write(tmp_path, files)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "SYS", tmp_path / "sys")
    monkeypatch.setattr(probe, "_ROOT", tmp_path)
    monkeypatch.setattr(probe.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(probe.os, "cpu_count", lambda: 4)
    return tmp_path


def test_cores_threads_and_caches(box: Path):
    cpu = probe.probe_cpu()
    assert (cpu.name, cpu.cores, cpu.affinity, cpu.present) == ("Toaster", 2, 4, 4)
    assert (cpu.quota, cpu.threads) == (None, 4)
    assert cpu.caches == (
        Cache(1, 48 << 10, 2), Cache(2, 2 << 20, 2), Cache(3, 36 << 20, 4),
    )  # fmt: skip


def test_cores_within_the_affinity_mask(box: Path, monkeypatch):
    monkeypatch.setattr(probe.os, "sched_getaffinity", lambda pid: {1, 3})
    cpu = probe.probe_cpu()
    assert (cpu.cores, cpu.affinity, cpu.present) == (1, 2, 4)


def test_a_kernel_that_tells_nothing_of_its_cpus(box: Path, monkeypatch):
    monkeypatch.setattr(machine, "SYS", box / "nowhere")
    cpu = probe.probe_cpu()
    assert (cpu.cores, cpu.caches) == (4, ())


def test_memory_without_limits(box: Path):
    memory = probe.probe_memory()
    assert (memory.total, memory.available, memory.limit) == (32 << 20, 16 << 20, None)
    assert (memory.swap_total, memory.swap_used) == (4 << 20, 3 << 20)
    assert (memory.pressure, memory.oom_kills, memory.oom_kills_inside) == (None, 0, 0)
    assert (memory.commit_left, memory.huge_pages) == (None, "")


def test_pressure_overcommit_huge_pages_and_oom_kills(box: Path):
    write(
        box,
        {
            "proc/pressure/memory": "some avg10=60.00 avg60=0.0 avg300=0.0 total=9\n"
            "full avg10=43.21 avg60=0.00 avg300=0.00 total=5\n",
            "proc/sys/vm/overcommit_memory": "2\n",
            "proc/vmstat": "pswpin 7\noom_kill 3\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        },
    )
    memory = probe.probe_memory()
    assert memory.pressure == pytest.approx(0.4321)
    assert memory.commit_left == -(4 << 20)  # more is promised than the limit
    assert (memory.oom_kills, memory.oom_kills_inside) == (3, 0)
    assert memory.huge_pages == "never"


def test_a_container_of_version_2(box: Path):
    write(
        box,
        {
            "proc/vmstat": "oom_kill 5\n",
            "sys/fs/cgroup/memory.max": str(8 << 20),
            "sys/fs/cgroup/memory.current": str(5 << 20),
            "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
            "sys/fs/cgroup/memory.events": "low 0\noom 4\noom_kill 2\noom_group_kill 0\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
        },
    )
    memory, cpu = probe.probe_memory(), probe.probe_cpu()
    assert (memory.limit, memory.available) == (8 << 20, 3 << 20)
    assert (memory.oom_kills, memory.oom_kills_inside) == (5, 2)
    assert (cpu.quota, cpu.threads) == (1.5, 2)


def test_a_limit_beyond_the_machine_is_none(box: Path):
    write(box, {"sys/fs/cgroup/memory.max": str(GIB)})
    assert probe.probe_memory().limit is None


def test_a_container_of_version_1(box: Path):
    write(
        box,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
            # In a container the path of its own group lies outside the mount.
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 << 20),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(6 << 20),
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\noom_kill 1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    memory, cpu = probe.probe_memory(), probe.probe_cpu()
    assert (memory.limit, memory.available, memory.oom_kills_inside) == (8 << 20, 2 << 20, 1)
    assert (cpu.quota, cpu.threads) == (0.5, 1)


@pytest.mark.parametrize(
    ("release", "wsl"),
    [
        ("6.8.0-45-generic", None),
        ("5.15.153.1-microsoft-standard-WSL2", 2),
        ("4.4.0-19041-Microsoft", 1),
    ],
)
def test_wsl(box: Path, release, wsl):
    write(box, {"proc/sys/kernel/osrelease": release + "\n"})
    software = probe.probe_software()
    assert (software.wsl, software.kernel) == (wsl, release)


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        (".dockerenv", "docker"),
        ("run/.containerenv", "podman"),
        ("run/secrets/kubernetes.io/serviceaccount/token", "kubernetes"),
        ("etc/hostname", ""),
    ],
)
def test_containers(box: Path, mark, name):
    write(box, {mark: ""})
    assert probe.probe_software().container == name


@pytest.mark.parametrize(
    ("version", "requires", "cuda"),
    [
        ("2.13.0+cpu", [], None),
        ("2.13.0+cu126", [], (12, 6)),
        ("2.13.0+cu130", [], (13, 0)),
        (
            "2.11.0",
            ["filelock", 'cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"'],
            (13, 0),
        ),
        ("2.8.0", ["nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"], (12, 8)),
        ("2.13.0", ["filelock"], None),
        ("2.13.0+rocm6.4", ["pytorch-triton-rocm==3.6.0"], None),
    ],
)
def test_the_cuda_that_torch_was_built_for(box: Path, monkeypatch, version, requires, cuda):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    monkeypatch.setattr(metadata, "requires", lambda package: requires)
    software = probe.probe_software()
    assert (software.torch, software.torch_cuda) == (version, cuda)


def test_packages_that_are_not_there(box: Path, monkeypatch):
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    software = probe.probe_software()
    assert software.torch is software.torch_cuda is software.triton is None


def test_limits_of_a_process(box: Path, monkeypatch):
    unlimited = probe.resource.RLIM_INFINITY
    limits = {
        probe.resource.RLIMIT_NOFILE: (1024, 4096),
        probe.resource.RLIMIT_AS: (GIB, unlimited),
    }
    monkeypatch.setattr(probe.resource, "getrlimit", limits.__getitem__)
    software = probe.probe_software()
    # The server raises its own limit of files as far as it may; that of addresses holds as it is.
    assert (software.open_files, software.address_space) == (4096, GIB)


def test_kernels_of_this_build(monkeypatch):
    monkeypatch.setattr(probe.cpu, "_cached", {})
    monkeypatch.setenv("PAGODA_CPU_ISA", "mmx")
    kernels = probe.probe_kernels()
    if not kernels.sets:
        pytest.skip("the native kernels are not built")
    assert (kernels.isa, kernels.wanted) == (None, "mmx")
    monkeypatch.setenv("PAGODA_CPU_ISA", "none")
    assert probe.probe_kernels().isa is None
    monkeypatch.setenv("PAGODA_CPU_ISA", "generic")
    monkeypatch.setattr(probe.cpu, "_cached", {})
    assert probe.probe_kernels().isa == "generic"


def test_kernels_that_were_not_built(monkeypatch, caplog):
    monkeypatch.setattr(probe.cpu, "_native", None)
    assert probe.probe_kernels().sets == ()
    assert not caplog.records  # the finding says it, once
