"""The file of --api-key-file: keys by name, as JSON that people edit and `pagoda keys` writes.

{"alice": {"sha256": "...", "created": "2026-11-26", "models": ["qwen3"], "parallel": 4}}
"""

import contextlib
import datetime
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.base.whole import write_whole

_log = get_logger(__name__)

MAX_KEYS = 1000
"""Every request is compared with each."""
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_PREFIX = "pagoda-"

Limit = Annotated[int, msgspec.Meta(ge=1)]
_Texts = tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True,
               forbid_unknown_fields=True):  # fmt: skip
    """One key; a limit that is not there does not limit."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """The key's digest in hexadecimal. A fast hash is enough: keys are 32 random bytes, which
    nobody finds by trying. A slow one, made for passwords, would be paid for at each request."""
    created: datetime.date
    models: Annotated[_Texts, msgspec.Meta(min_length=1)] | None = None
    """Names that it may ask for; None is all."""
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    """Tokens of prompts and replies together."""
    tokens_per_day: Limit | None = None
    """Likewise; days are UTC's."""
    parallel: Limit | None = None
    admin: bool = False
    """Whether it may manage the server, and sees the usage of all keys."""
    disabled: bool = False


Entries = dict[str, KeyEntry]


def digest_of(key: str) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(key.encode()).digest()


_NO_KEY = digest_of("").hex()


def new_key() -> tuple[str, str]:
    """A key, and the hexadecimal digest that the file keeps of it."""
    key = _PREFIX + secrets.token_urlsafe(32)
    return key, digest_of(key).hex()


def read_keys(path: Path) -> Entries:
    """Raises ConfigError, which names the file, the key's name and what is wrong, and shows no
    value."""
    try:
        data = _contents(path)
        entries = {name: _entry(name, raw) for name, raw in _objects(data).items()}
        _check(entries)
    except OSError as error:
        raise ConfigError(
            f"--api-key-file {path} cannot be read: {error.strerror}. "
            f"`pagoda keys add NAME --file {path}` makes such a file."
        ) from None
    except ValueError as error:
        raise ConfigError(f"--api-key-file {path}: {error}") from None
    return entries


def write_keys(path: Path, entries: Entries) -> None:
    """For this user alone, and whole or not at all. Raises ConfigError as `read_keys`, OSError
    where it cannot be written."""
    try:
        _check(entries)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    write_whole(path, msgspec.json.format(msgspec.json.encode(entries)) + b"\n", mode=0o600)


@contextlib.contextmanager
def edited(path: Path) -> Iterator[Entries]:
    """The file's keys, none where there is no file, to be changed; written when the block ends.
    Who else edits the file so waits meanwhile. Raises as `read_keys` and `write_keys`."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = read_keys(path) if path.exists() else {}
        yield entries
        write_keys(path, entries)
    finally:
        os.close(folder)


def warn_if_open(path: Path) -> None:
    """Digests open nothing, but names and limits are nobody else's."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        _log.warning("%s has mode %04o; `chmod 600 %s` keeps it to this user.", path, mode, path)


def check_name(name: str) -> None:
    """ConfigError for what is no name of a key."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is no name of a key: {_NAMES}")


_NAMES = "at most 64 letters, digits and . _ @ -, the first of which is a letter or a digit."


def _contents(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no file.")
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes.")
    return data


def _objects(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ValueError(
            f"it is no JSON object of keys by their names ({error}); `pagoda keys add` writes one, "
            "and --api-key takes plain keys."
        ) from None


def _entry(name: str, raw: msgspec.Raw) -> KeyEntry:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name of a key: {_NAMES}")
    try:
        return msgspec.json.decode(raw, type=KeyEntry)
    except msgspec.DecodeError as error:
        raise ValueError(f"the key {name!r} is wrong: {error}.") from None


def _check(entries: Entries) -> None:
    if len(entries) > MAX_KEYS:
        raise ValueError(f"it has {len(entries)} keys; at most {MAX_KEYS} are taken.")
    owners: dict[str, str] = {}
    for name, entry in entries.items():
        if entry.sha256 == _NO_KEY:
            raise ValueError(f"the key {name!r} is empty, which would open the API to everyone.")
        other = owners.setdefault(entry.sha256, name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} have the same key; give each its own.")
        if entry.admin and entry.models is not None:
            raise ValueError(f"{name!r} is an admin's and may use all models; leave `models` out.")
