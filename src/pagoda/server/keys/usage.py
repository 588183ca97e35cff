"""What was used by each key, kept in a file beside that of the keys."""

import asyncio
import datetime
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.base.whole import write_whole

_log = get_logger(__name__)

SAVE_SECONDS = 5.0
_DAY = 86400
_EPOCH = datetime.date(1970, 1, 1)


class Counts(msgspec.Struct):
    """Cached tokens are among those of the prompt."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, requests: int, prompt: int, completion: int, cached: int) -> None:
        self.requests += requests
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += cached


class KeyUsage(msgspec.Struct):
    """What one key used, by model; days are UTC's."""

    key: str
    since: datetime.date
    day: datetime.date
    total: dict[str, Counts] = {}
    today: dict[str, Counts] = {}


def usage_file(keys: Path) -> Path:
    return keys.with_name(keys.name + ".usage.json")


def read_usage(path: Path) -> list[KeyUsage]:
    """Nothing where there is no file. Raises ConfigError for a broken one: what it counted is not
    to be lost unseen."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[KeyUsage])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"The usage of keys in {path} cannot be read: {error}. Move the file away to count "
            "from nothing."
        ) from None


class Ledger:
    """Counts all keys in memory; `save` writes what changed."""

    def __init__(self, path: Path):
        """Raises ConfigError as `read_usage`."""
        self._path = path
        self._rows = {row.key: row for row in read_usage(path)}
        self._day = -1
        """Days since 1970."""
        self._changes = 0
        self._written = 0
        self._writing = threading.Lock()
        self._trouble = ""

    def add(
        self, key: str, model: str, *,
        requests: int = 0, prompt: int = 0, completion: int = 0, cached: int = 0,
    ) -> None:  # fmt: skip
        row = self.row(key)
        for counted in (row.total, row.today):
            counts = counted.get(model)
            if counts is None:
                counts = counted[model] = Counts()
            counts.add(requests, prompt, completion, cached)
        self._changes += 1

    def row(self, key: str) -> KeyUsage:
        """What the key used until now; nothing where it is new."""
        self._turn_day()
        row = self._rows.get(key)
        if row is None:
            day = _EPOCH + datetime.timedelta(self._day)
            row = self._rows[key] = KeyUsage(key, day, day)
        return row

    def rows(self) -> list[KeyUsage]:
        """Also of keys that were removed."""
        self._turn_day()
        return [self._rows[key] for key in sorted(self._rows)]

    def tokens_today(self, key: str) -> int:
        counted = self.row(key).today.values()
        return sum(counts.prompt_tokens + counts.completion_tokens for counts in counted)

    async def keep_saved(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """A disk that takes nothing stops no request: the log says so, and it is tried again."""
        if self._changes == self._written:
            return
        data, number = msgspec.json.encode(self.rows()), self._changes
        try:
            await asyncio.to_thread(self._write, data, number)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                _log.error("The usage of keys cannot be written: %s.", error)
            self._trouble = str(error)

    def _write(self, data: bytes, number: int) -> None:
        with self._writing:
            # A save that was cancelled goes on in its thread: the later one counts.
            if number > self._written:
                write_whole(self._path, data, mode=0o600)
                self._written = number

    def _turn_day(self) -> None:
        day = int(time.time()) // _DAY
        if day == self._day:
            return
        self._day = day
        today = _EPOCH + datetime.timedelta(day)
        for row in self._rows.values():
            if row.day != today:
                row.day, row.today = today, {}


def seconds_of_day_left() -> float:
    return _DAY - time.time() % _DAY


class KeyCollector(Collector):
    """By the names of keys, never the keys."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("pagoda:key_requests", "Requests by key.", labels=["key"])
        tokens = CounterMetricFamily(
            "pagoda:key_tokens", "Tokens by key; cached ones are among the prompt's.",
            labels=["key", "kind"],
        )  # fmt: skip
        for row in self._ledger.rows():
            counted = row.total.values()
            requests.add_metric([row.key], sum(counts.requests for counts in counted))
            for kind in ("prompt", "completion", "cached"):
                total = sum(getattr(counts, f"{kind}_tokens") for counts in counted)
                tokens.add_metric([row.key, kind], total)
        yield from (requests, tokens)
