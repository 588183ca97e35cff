import subprocess
import sys
from pathlib import Path

import pytest

from pagoda.base import machine

MEMINFO = "MemTotal:  1000 kB\nMemFree: 300 kB\nMemAvailable:  800 kB\nHugePages_Total: 0\n"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 1,000 KiB with 800 KiB available, and no limits."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nmodel name\t: Toaster\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "SYS", tmp_path / "sys")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    return tmp_path


def test_without_limits_the_machine_counts(box: Path):
    facts = machine.cpu_facts()
    assert (facts.total_memory, facts.free_memory) == (1000 << 10, 800 << 10)
    assert (facts.num_threads, facts.name) == (4, "Toaster")


def test_version_2_limits_of_a_parent_group_count(box: Path):
    (box / "proc/self/cgroup").write_text("0::/parent/child\n")
    parent = box / "sys/fs/cgroup/parent"
    (parent / "child").mkdir(parents=True)
    (parent / "child/memory.max").write_text("max\n")
    (parent / "memory.max").write_text(str(500 << 10))
    (parent / "memory.current").write_text(str(300 << 10))
    (parent / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 10}\n")
    (parent / "cpu.max").write_text("150000 100000\n")
    facts = machine.cpu_facts()
    assert facts.total_memory == 500 << 10
    assert facts.free_memory == 300 << 10  # 500 less the 200 that cannot be reclaimed
    assert facts.num_threads == 2  # 1.5 CPUs, rounded up


def test_version_1_limits_count_and_its_no_limit_does_not(box: Path):
    (box / "proc/self/cgroup").write_text("4:memory:/box\n2:cpu,cpuacct:/box\n")
    memory, cpu = box / "sys/fs/cgroup/memory/box", box / "sys/fs/cgroup/cpu,cpuacct/box"
    memory.mkdir(parents=True)
    cpu.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712")
    (memory.parent / "memory.limit_in_bytes").write_text(str(400 << 10))
    (memory.parent / "memory.usage_in_bytes").write_text(str(100 << 10))
    (cpu / "cpu.cfs_quota_us").write_text("100000")
    (cpu / "cpu.cfs_period_us").write_text("100000")
    facts = machine.cpu_facts()
    assert (facts.total_memory, facts.free_memory) == (400 << 10, 300 << 10)
    assert facts.num_threads == 1


def test_unlimited_quota_is_no_quota(box: Path):
    (box / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert machine.usable_threads() == 4


def test_own_memory_is_read():
    assert machine.resident_bytes() > machine.anonymous_bytes() > 1 << 20
    assert machine.resident_bytes(2**22 + 1) == 0  # no such process


def test_memory_of_a_process_counts_what_it_started():
    """The process starts one that fills 64 MiB, and fills 32 MiB itself."""
    inner = "held = b'x' * (64 << 20); print(flush=True); input()"
    outer = (
        "import subprocess, sys; held = b'x' * (32 << 20); "
        f"child = subprocess.Popen([sys.executable, '-c', {inner!r}]); child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert 32 << 20 < machine.resident_bytes(process.pid) < 64 << 20
        assert 96 << 20 < machine.tree_bytes(process.pid) < 160 << 20
        process.communicate(b"\n")
