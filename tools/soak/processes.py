"""What the server's processes hold, read from /proc."""

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pagoda.base.machine import anonymous_bytes, cpu_seconds

PROC = Path("/proc")
HANDLES = ("open files", "sockets", "threads", "shared memory")


@dataclass(frozen=True)
class Held:
    """Of one process at one moment."""

    memory: int
    """Bytes of its own, without pages of files."""
    handles: dict[str, int]


def command(pid: int) -> bytes:
    """Its words, with a zero byte behind each; empty where it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    found = []
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


def reads(pid: int, files: dict[str, Path]) -> str | None:
    """The name of the model whose files an engine has mapped."""
    try:
        maps = (PROC / str(pid) / "maps").read_text()
    except OSError:
        return None
    return next((name for name, folder in files.items() if f"{folder}/" in maps), None)


def held(pid: int) -> Held | None:
    """None when it is gone."""
    try:
        links = [os.readlink(link) for link in (PROC / str(pid) / "fd").iterdir()]
        maps = (PROC / str(pid) / "maps").read_text()
        threads = len(list((PROC / str(pid) / "task").iterdir()))
    except OSError:
        return None
    handles = {
        "open files": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": threads,
        "shared memory": maps.count(" /dev/shm/") + sum("/dev/shm/" in link for link in links),
    }
    return Held(anonymous_bytes(pid), handles)


def idle_share(pids: list[int], seconds: float) -> float:
    """The processes' share of one core while nobody asks them anything."""
    begun, spent = time.monotonic(), sum(map(cpu_seconds, pids))
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - spent) / (time.monotonic() - begun)


class Record:
    """Samples of every process over a run."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        """By role and pid: (requests that the role has served, bytes)."""
        self.quiet: dict[tuple[str, str], list[int]] = defaultdict(list)
        """By kind of handle and role: numbers at each quiet look."""

    def sample(self, roles: dict[int, str], served: dict[str, int], *, quiet: bool) -> None:
        for pid, role in roles.items():
            found = held(pid)
            if found is None:
                continue
            self.memory[role, pid].append((served.get(role, 0), found.memory))
            if quiet:
                for what in HANDLES:
                    self.quiet[what, role].append(found.handles[what])
