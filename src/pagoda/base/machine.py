"""Facts about this machine's CPU and memory, read from /proc and the container's cgroup."""

import contextlib
import math
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import overload

from pagoda.base.facts import DeviceFacts
from pagoda.base.topology import memory_nodes

PROC = Path("/proc")
SYS = Path("/sys")
# cgroup v1 writes "no limit" as a huge number (PAGE_COUNTER_MAX); nothing real is above 2^60.
_NO_LIMIT = 1 << 60


def cpu_facts() -> DeviceFacts:
    """Memory and threads that this process may use: machine, affinity and container considered."""
    meminfo = read_meminfo()
    total, free = meminfo["MemTotal"], meminfo["MemAvailable"]
    for limit, used in _memory_limits():
        total = min(total, limit)
        free = min(free, max(0, limit - used))
    nodes = memory_nodes(SYS, os.sched_getaffinity(0))
    cores = sum(len(node.cores) for node in nodes)
    return DeviceFacts("cpu", total, free, _within_quota(cores), name=_cpu_name(), nodes=nodes)


def usable_threads() -> int:
    """CPUs in the affinity mask, or the container's quota rounded up, whichever is lower."""
    return _within_quota(len(os.sched_getaffinity(0)))


def cpu_quota() -> float | None:
    """CPUs that the container may use, 1.5 say; None where it may use all."""
    return min(_cpu_quotas(), default=None)


def memory_limit() -> int | None:
    """Bytes that the container may use; None where it may use all."""
    return min((limit for limit, _ in _memory_limits()), default=None)


def address_limit() -> int | None:
    """Bytes of addresses that this process may have (`ulimit -v`); None for any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def oom_kills() -> tuple[int, int] | None:
    """Processes ended for lack of memory: on the machine since it started, and in this container
    (those count among the former too). None where the kernel counts none."""
    everywhere = _read_stat(PROC / "vmstat", "oom_kill", None)
    if everywhere is None:
        return None
    inside = 0
    for folder in _cgroup_folders("memory"):
        for file in ("memory.events", "memory.oom_control"):
            inside = max(inside, _read_stat(folder / file, "oom_kill"))
    return everywhere, inside


def memory_pressure() -> float | None:
    """Share of the last ten seconds in which no process could go on for lack of memory; None
    where the kernel does not say."""
    for line in (read_text(PROC / "pressure/memory") or "").splitlines():
        if line.startswith("full avg10="):
            return float(line.split()[1].removeprefix("avg10=")) / 100
    return None


def read_meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    entries = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        entries[name] = int(value[0]) * (1024 if len(value) > 1 else 1)
    entries.setdefault("MemAvailable", entries.get("MemFree", 0) + entries.get("Cached", 0))
    return entries


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, file pages included."""
    return _status_bytes(pid, "VmRSS")


def tree_bytes(pid: int | str) -> int:
    """Resident memory of a process and of what it started: of these their own alone, since the file
    pages are the same."""
    found, waiting = resident_bytes(pid), _children(pid)
    while waiting:
        child = waiting.pop()
        found += anonymous_bytes(child)
        waiting += _children(child)
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a process have taken so far, in user code and for it."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process that is its own: no file pages, no shared memory."""
    return _status_bytes(pid, "RssAnon")


def shared_memory_free() -> int | None:
    """Free bytes of /dev/shm; None where there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def _children(pid: int | str) -> list[int]:
    found: list[int] = []
    for listed in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process that has just ended
            found += map(int, listed.read_text().split())
    return found


def _status_bytes(pid: int | str, key: str) -> int:
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """This process's cgroup folder and all above it: any of them may hold the limit.

    Inside a container the path in /proc/self/cgroup may not exist below the mount, so the
    mount's own root is always tried.
    """
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = SYS / "fs/cgroup" / controllers if controllers else SYS / "fs/cgroup"
        folder = root / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == root:
                break
            folder = folder.parent


def _memory_limits() -> Iterator[tuple[int, int]]:
    """(limit, bytes that cannot be reclaimed) of each cgroup that has a limit."""
    for folder in _cgroup_folders("memory"):
        for limit_file, usage_file, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _read_number(folder / limit_file)
            if limit is None or limit >= _NO_LIMIT:
                continue
            usage = _read_number(folder / usage_file) or 0
            yield limit, max(0, usage - _read_stat(folder / "memory.stat", inactive))


def _cpu_quotas() -> Iterator[float]:
    for folder in _cgroup_folders("cpu"):
        text = read_text(folder / "cpu.max")
        if text is not None:
            quota, _, period = text.partition(" ")
            if quota != "max":
                yield int(quota) / int(period or 100_000)
            continue
        quota_us = _read_number(folder / "cpu.cfs_quota_us")
        period_us = _read_number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            yield quota_us / period_us


def _within_quota(count: int) -> int:
    return min([count, *(max(1, math.ceil(quota)) for quota in _cpu_quotas())])


def read_text(path: Path) -> str | None:
    """A small file's text without the white space around it; None where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


@overload
def _read_stat(path: Path, key: str) -> int: ...
@overload
def _read_stat(path: Path, key: str, missing: None) -> int | None: ...
def _read_stat(path: Path, key: str, missing: int | None = 0) -> int | None:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return missing


def _cpu_name() -> str:
    for line in (read_text(PROC / "cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
