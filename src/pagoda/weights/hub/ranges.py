"""Parts of files that lie on a hub, by HTTP range requests (RFC 9110, section 14)."""

import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from pagoda.base.errors import SourceError
from pagoda.weights.choice import Choice, Listing, RemoteFile

_ATTEMPTS = 3
_PASSING = frozenset((408, 429, 500, 502, 503, 504))
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)


class Hub(Protocol):
    """A hub, asked for one model."""

    name: str
    """`org/name`."""
    errors: tuple[type[Exception], ...]
    """What `listing` and `stream` raise when the hub or the network fails."""

    def listing(self) -> Listing:
        """The model's files; SourceError where there is no such model."""

    def pulled(self, commit: str, choice: Choice) -> Path | None:
        """Where an earlier fetch put these files, if all are there; the path to open."""

    def pulled_before(self) -> Path | None:
        """What an earlier fetch left, whole or not; the path to open."""

    def stream(
        self, commit: str, path: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Any]:
        """An httpx response whose body is not read yet."""

    def explain(self, error: Exception) -> str:
        """One of `errors` as a sentence that says what to do."""


class RemoteBytes:
    """The bytes of one file on a hub."""

    def __init__(self, hub: Hub, commit: str, file: RemoteFile):
        self._hub = hub
        self._commit = commit
        self.file = file
        self.path = Path(hub.name, file.path)
        """For messages."""
        self.size = file.nbytes

    def read(self, start: int, stop: int) -> bytearray:
        """Those bytes, all of them; SourceError when they cannot be had."""
        if start >= stop:
            return bytearray()
        for attempt in range(_ATTEMPTS):
            try:
                return self._read(start, stop)
            except self._hub.errors as error:
                if attempt == _ATTEMPTS - 1 or not _is_passing(error):
                    raise SourceError(self._hub.explain(error)) from error
            time.sleep(2**attempt / 2)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, start: int, stop: int) -> bytearray:
        # Ranges and sizes are those of the plain file.
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        found = bytearray()
        with self._hub.stream(self._commit, self.file.path, headers) as reply:
            skip = self._position(reply, start)
            for chunk in reply.iter_bytes():
                found += chunk[skip:]
                skip = max(0, skip - len(chunk))
                if len(found) >= stop - start:
                    break
        if len(found) < stop - start:
            raise SourceError(
                f"{self.path}: the hub sent {len(found)} bytes of the {stop - start} asked for. "
                "Try again, or ask another mirror."
            )
        del found[stop - start :]
        return found

    def _position(self, reply: Any, start: int) -> int:
        """How many bytes come before those asked for: servers may ignore ranges."""
        if reply.status_code == 206:
            match = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != start:
                raise SourceError(
                    f"{self.path}: the hub was asked for the bytes from {start} on and sent "
                    f"{reply.headers.get('Content-Range')!r}. Ask another mirror."
                )
            size, before = match[3], 0
        else:
            encoded = reply.headers.get("Content-Encoding", "identity") != "identity"
            size, before = "*" if encoded else reply.headers.get("Content-Length", "*"), start
        if size not in ("*", str(self.size)):
            kind = reply.headers.get("Content-Type", "a file")
            raise SourceError(
                f"{self.path} has {self.size} bytes, but {reply.url.host} sent {kind} of {size}: a "
                "login page or proxy stands between, or a mirror is out of date. Open the model's "
                "page in a browser, or set another endpoint."
            )
        return before


def _is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed: the network failed, or the hub is busy."""
    response = getattr(error, "response", None)
    return response is None or response.status_code in _PASSING
