"""The keys of --api-key-file, as the file has them now."""

import time
from collections.abc import Callable
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.server.keys.account import Account
from pagoda.server.keys.file import Entries, read_keys, warn_if_open
from pagoda.server.keys.usage import Ledger, usage_file

_log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""From one look at the file to the next, at least."""


class Keyring:
    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        """Raises ConfigError for a file of keys, or of their usage, that cannot be read."""
        self._path = path
        self._clock = clock
        self._seen = _signature(path)
        self._looked = clock()
        self._accounts: dict[str, Account] = {}
        self.ledger = Ledger(usage_file(path))
        self.digests: list[tuple[bytes, Account]] = []
        """Those of all keys that open anything."""
        self._take(read_keys(path))
        warn_if_open(path)

    def refresh(self) -> None:
        """Read the file again if it changed. One that is broken changes nothing, and the log says
        why."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        seen = _signature(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take(read_keys(self._path))
        except ConfigError as error:
            _log.error("%s The keys that were read before still hold.", error)
            return
        _log.info("%s was read again: %d keys.", self._path, len(self._accounts))

    def names(self) -> list[str]:
        return sorted(self._accounts)

    def _take(self, entries: Entries) -> None:
        before, self._accounts = self._accounts, {}
        for name, entry in entries.items():
            account = before.get(name)
            if account is None or account.entry.sha256 != entry.sha256:
                account = Account(name, entry, self.ledger, self._clock)
            account.entry, account.open = entry, not entry.disabled
            self._accounts[name] = account
        for name, account in before.items():
            if self._accounts.get(name) is not account:
                account.open = False
        self.digests = [
            (bytes.fromhex(account.entry.sha256), account)
            for account in self._accounts.values()
            if account.open
        ]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
