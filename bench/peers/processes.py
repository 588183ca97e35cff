"""A process and all its children, as /proc shows them: held still, weighed, ended."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """`pid` and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def hold(pid: int) -> None:
    _signal(pid, signal.SIGSTOP)


def release(pid: int) -> None:
    _signal(pid, signal.SIGCONT)


def end(process: subprocess.Popen[str], seconds: float = 20.0) -> None:
    """Ask it to stop, then kill whatever of its tree is left."""
    family = tree(process.pid)
    release(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    for pid in family[1:] if process.poll() is not None else family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def proportional_bytes(pid: int) -> int:
    """Resident memory of the whole tree, shared pages counted once (PSS)."""
    total = 0
    for member in tree(pid):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(member) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pid: int) -> float:
    """Time that the living processes of the tree have computed."""
    total = 0
    for member in tree(pid):
        if fields := _stat(member):
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def machine_seconds() -> float:
    """Time that all cores have computed, or that a host took from them."""
    fields = [int(text) for text in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS  # idle, iowait


def _stat(pid: int) -> list[str]:
    """Fields from the state on; a process's name may hold spaces and brackets."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _signal(pid: int, number: int) -> None:
    for member in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
