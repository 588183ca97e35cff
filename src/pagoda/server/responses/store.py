"""Finished responses, kept for whoever comes back for them: in memory, or in an SQLite file."""

import asyncio
import contextlib
import os
import re
import sqlite3
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.whole import sync_folder

T = TypeVar("T")

MEMORY = ":memory:"
_VERSION = 1
_INTERRUPTED = "The server ended while it was writing this response."
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_\d+")
_SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, previous TEXT, size INTEGER NOT NULL, used INTEGER NOT NULL,
    running INTEGER NOT NULL, response BLOB NOT NULL, input BLOB NOT NULL, events BLOB NOT NULL
);
CREATE INDEX by_use ON responses (used);
"""


class Bound(NamedTuple):
    """What a store may hold; beyond it those that were not used for longest go."""

    responses: int
    bytes: int

    def without(self, size: int | None) -> "Bound":
        """As the amount that a store holds, less one response; None is none."""
        return self if size is None else Bound(self.responses - 1, self.bytes - size)


MEMORY_BOUND = Bound(1000, 64 << 20)
FILE_BOUND = Bound(100_000, 1 << 30)


class Stored(msgspec.Struct, kw_only=True):
    """A response as it was sent, and what it answers."""

    id: str
    previous_id: str | None
    running: bool = False
    response: bytes
    """JSON of the object."""
    input: bytes
    """JSON of the list of its input items."""
    events: bytes = b""
    """Those of its stream; number N is the one with that sequence_number."""

    def items(self) -> list[dict[str, Any]]:
        """What it adds to a conversation."""
        response = msgspec.json.decode(self.response)
        return [*msgspec.json.decode(self.input), *response["output"]]


def owner_of(item_id: str) -> str | None:
    """Id of the response whose output has the item; None for ids that were not made here."""
    match = _ITEM_ID.fullmatch(item_id)
    return f"resp_{match[1]}" if match else None


class ResponseStore:
    """All access is on one thread of its own: SQLite waits for the disk, and the loop must not.

    Raises ConfigError where the file cannot be used.
    """

    def __init__(self, path: str | None, bound: Bound | None = None):
        self._path = path or MEMORY
        self._bound = bound or (FILE_BOUND if path else MEMORY_BOUND)
        self._thread = ThreadPoolExecutor(1, "responses-store")
        self._database: sqlite3.Connection | None = None
        self._held = Bound(0, 0)
        self._clock = 0
        if path:
            self._thread.submit(self._open).result()

    async def put(self, stored: Stored) -> None:
        """Add or replace it. CapacityError where it cannot be kept; what was there stays."""
        await self._run(self._put, stored)

    async def get(self, response_id: str) -> Stored | None:
        return await self._run(self._get, response_id)

    async def delete(self, response_id: str) -> bool:
        """Whether it was there."""
        return await self._run(self._delete, response_id)

    def close(self) -> None:
        """Waits for what was begun."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        except sqlite3.Error as error:
            raise CapacityError(
                f"The stored responses cannot be read or changed: {error}. Make room where "
                "--responses-store lies, or name another file."
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._database is not None:
            return self._database
        try:
            if self._path != MEMORY:
                # What people asked and were told is nobody else's.
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
                sync_folder(Path(self._path).absolute().parent)
            database = sqlite3.connect(self._path, timeout=1, isolation_level=None)
            # Two servers would end each other's responses.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            # What a client is told is kept outlives a power cut.
            database.execute("PRAGMA synchronous = FULL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.executescript(_SCHEMA + f"PRAGMA user_version = {_VERSION};")
            elif version != _VERSION:
                raise ConfigError(
                    f"--responses-store {self._path} has the version {version}, and this is "
                    f"version {_VERSION}; name another file."
                )
            _end_interrupted(database)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"--responses-store {self._path} can't be used: {error}. Name a file in a folder "
                "that the server may write to."
            ) from error
        self._held = Bound(
            *database.execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
        )
        (self._clock,) = database.execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()
        self._database = database
        return database

    def _put(self, stored: Stored) -> None:
        database = self._open()
        events = zlib.compress(stored.events, 1)
        size = len(stored.response) + len(stored.input) + len(events)
        with database:
            database.execute("BEGIN")
            held = self._held.without(self._remove(stored.id))
            database.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (stored.id, stored.previous_id, size, self._tick(), stored.running,
                 stored.response, stored.input, events),
            )  # fmt: skip
            held = Bound(held.responses + 1, held.bytes + size)
            while any(has > most for has, most in zip(held, self._bound, strict=True)):
                oldest = "SELECT id FROM responses ORDER BY used LIMIT 1"
                held = held.without(self._remove(database.execute(oldest).fetchone()[0]))
        # Not before it is written: what fails is taken back.
        self._held = held

    def _get(self, response_id: str) -> Stored | None:
        database = self._open()
        row = database.execute(
            "SELECT previous, running, response, input, events FROM responses WHERE id = ?",
            (response_id,),
        ).fetchone()
        # A full disk costs the note of its use, and not what is there.
        with contextlib.suppress(sqlite3.OperationalError):
            database.execute(
                "UPDATE responses SET used = ? WHERE id = ?", (self._tick(), response_id)
            )
        if row is None:
            return None
        previous, running, response, given, events = row
        return Stored(
            id=response_id, previous_id=previous, running=bool(running), response=response,
            input=given, events=zlib.decompress(events),
        )  # fmt: skip

    def _delete(self, response_id: str) -> bool:
        size = self._remove(response_id)
        self._held = self._held.without(size)
        return size is not None

    def _remove(self, response_id: str) -> int | None:
        """Its size, None if it is not there."""
        row = (
            self._open()
            .execute("DELETE FROM responses WHERE id = ? RETURNING size", (response_id,))
            .fetchone()
        )
        return None if row is None else int(row[0])

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()


def _end_interrupted(database: sqlite3.Connection) -> None:
    """Whatever ran when a server was killed has failed."""
    running = "SELECT id, response, events FROM responses WHERE running"
    for response_id, raw, compressed in database.execute(running).fetchall():
        response = msgspec.json.decode(raw)
        response["status"] = "failed"
        response["error"] = {"code": "server_error", "message": _INTERRUPTED}
        events = zlib.decompress(compressed)
        last = {
            "type": "response.failed", "sequence_number": events.count(b"\n\n"),
            "response": response,
        }  # fmt: skip
        events += b"event: response.failed\ndata: " + msgspec.json.encode(last) + b"\n\n"
        database.execute(
            "UPDATE responses SET running = 0, response = ?, events = ? WHERE id = ?",
            (msgspec.json.encode(response), zlib.compress(events, 1), response_id),
        )
