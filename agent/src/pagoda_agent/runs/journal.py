"""What a run did, line by line on disk, so that it can be read, resumed and replayed.

A folder per run (mode 0700): `journal.jsonl`, one JSON object a line, written through to the disk
before what it announces is done, and `frames/`, the screenshots as they were seen.
"""

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pagoda_agent.base.errors import AgentError
from pagoda_agent.base.whole import sync_folder, write_whole
from pagoda_agent.models.dialogue import Picture
from pagoda_agent.screen.frame import Frame

JOURNAL = "journal.jsonl"
# A run that is resumed must know what was begun, and what the user said.
_LASTING = ("start", "acting", "hint", "answer", "consent", "state")
FRAMES = "frames"


class JournalError(AgentError):
    """The journal cannot be written (a full disk) or read."""


class Journal:
    """Appends to one run's folder. `redact` takes secrets out of everything that is written."""

    def __init__(self, folder: Path, redact: Callable[[str], str]):
        self.folder = folder
        self.redact = redact
        try:
            (folder / FRAMES).mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            _drop_cut_line(folder / JOURNAL)
            descriptor = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for holder in (folder, folder.parent):  # of names that may be new
                sync_folder(holder)
        except OSError as error:
            raise JournalError(f"{folder} cannot be written to: {error.strerror}.") from error
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """The event as it was written, without secrets. Raises JournalError when it cannot be.

        What must not be forgotten is on the disk when this returns, with all before it; the rest
        outlives the process, but not a power cut.
        """
        line = self._line(event, fields)
        data = line.encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(28, "No space left on device")
            if event in _LASTING:
                os.fsync(self._file.fileno())
        except OSError as error:
            # What was not kept must not spoil the next line, nor be read as if it had happened.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), size)
            raise JournalError(
                f"The journal in {self.folder} cannot be written: {error.strerror}. "
                "Make room there, or choose another folder with --runs-dir."
            ) from error
        written: dict[str, Any] = json.loads(line)
        return written

    def redacted(self, event: str, **fields: Any) -> dict[str, Any]:
        """The event as it would be written."""
        told: dict[str, Any] = json.loads(self._line(event, fields))
        return told

    def _line(self, event: str, fields: dict[str, Any]) -> str:
        line = json.dumps({"event": event, "time": time.time(), **fields}, ensure_ascii=False)
        return self.redact(line)

    def save_picture(self, frame: Frame, picture: Picture) -> dict[str, Any]:
        """Keep what the model is sent of a frame; what the journal says of it."""
        name = f"{frame.number:06d}.{picture.media_type.rpartition('/')[2]}"
        path = self.folder / FRAMES / name
        try:
            write_whole(path, picture.data)
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}.") from error
        digest = hashlib.sha256(picture.data).hexdigest()
        return {"file": name, "sha256": digest, "size": list(frame.size), "stale": frame.stale}

    def close(self) -> None:
        self._file.close()


def _drop_cut_line(path: Path) -> None:
    """A crash in the middle of a line must not spoil the next one."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def make_runs(runs: Path) -> None:
    """The folder of all journals, where it is not there yet. Raises JournalError where none could
    be kept."""
    try:
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"{runs} cannot be made: {error.strerror}.") from error
    if not os.access(runs, os.W_OK | os.X_OK):
        raise JournalError(f"{runs} cannot be written to; choose another folder with --runs-dir.")


def new_folder(runs: Path) -> Path:
    """A name for a new run's folder, which sorts by time."""
    return runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def latest(runs: Path, count: int) -> list[tuple[str, str]]:
    """Name and task of the last runs whose journals can be read, the newest first."""
    found: list[tuple[str, str]] = []
    for journal in sorted(runs.glob(f"*/{JOURNAL}"), reverse=True):
        with contextlib.suppress(JournalError):
            tasks = (str(event["task"]) for event in read(journal.parent) if "task" in event)
            found += [(journal.parent.name, task) for task in [next(tasks, None)] if task]
        if len(found) == count:
            break
    return found


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Every event of a run. A last line that a crash cut off is left out.

    Raises JournalError for a journal that is missing or broken elsewhere.
    """
    try:
        lines = (folder / JOURNAL).read_bytes().split(b"\n")
    except OSError as error:
        raise JournalError(f"{folder} has no readable {JOURNAL}: {error.strerror}.") from error
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise JournalError(f"Line {number} of {folder / JOURNAL} is not JSON.") from error
        if not isinstance(event, dict) or "event" not in event:
            raise JournalError(f"Line {number} of {folder / JOURNAL} is not an event.")
        yield event
