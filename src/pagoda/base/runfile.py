"""Which server runs on which port of this machine, so that `pagoda stop --port` finds it."""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pagoda.base.env import cache_dir
from pagoda.base.log import get_logger
from pagoda.base.whole import write_whole

log = get_logger(__name__)


@dataclass(frozen=True)
class RunningServer:
    port: int
    pid: int
    started: int
    """The process's start in clock ticks since boot: a pid alone may belong to another by now."""


def register(port: int, pid: int | None = None) -> None:
    """Note that process `pid` (this one by default) serves on `port`. Without room for the note
    the server serves all the same."""
    pid = os.getpid() if pid is None else pid
    entry = RunningServer(port, pid, _start_ticks(pid) or 0)
    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(_file(port), json.dumps(asdict(entry)))
    except OSError as error:
        log.warning("`pagoda stop --port %d` will not find this server: %s.", port, error)


def find(port: int) -> RunningServer | None:
    """The server on `port`, if it is alive; the note of a dead one is removed."""
    entry = _read(port)
    if entry is None:
        return None
    if _start_ticks(entry.pid) == entry.started:
        return entry
    _forget(port)
    return None


def running() -> list[RunningServer]:
    """The servers that are alive, by their ports."""
    try:
        ports = sorted(int(note.stem) for note in _folder().glob("*.json") if note.stem.isdigit())
    except OSError:
        return []
    return [entry for port in ports if (entry := find(port)) is not None]


def unregister(port: int, pid: int | None = None) -> None:
    """Forget the server on `port`, unless the note is another process's by now."""
    entry = _read(port)
    if entry is None or entry.pid == (os.getpid() if pid is None else pid):
        _forget(port)


def _forget(port: int) -> None:
    # A note that stays names a process that is gone, which readers notice.
    with contextlib.suppress(OSError):
        _file(port).unlink(missing_ok=True)


def _folder() -> Path:
    return cache_dir() / "run"


def _file(port: int) -> Path:
    return _folder() / f"{port}.json"


def _read(port: int) -> RunningServer | None:
    try:
        fields = json.loads(_file(port).read_text())
        return RunningServer(int(fields["port"]), int(fields["pid"]), int(fields["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process.

    The second field is the program's name in parentheses and may hold spaces and parentheses.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
