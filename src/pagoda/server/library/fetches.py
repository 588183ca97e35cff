"""Models that are being fetched for clients, who hear how far it is."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pagoda.base.errors import PagodaError
from pagoda.config.engine import ModelConfig
from pagoda.weights.source import resolve_model

# Others wait: two fill any line.
_AT_ONCE = 2
_LOOKS = 0.25
# Proxies and clients give up a stream in which nothing is said for so many seconds, or more.
_QUIET_SECONDS = 10.0


class _GivenUpError(PagodaError):
    """Nobody waits for the model any more."""


@dataclass(frozen=True)
class FetchedPart:
    """How far a part of a model is, in bytes."""

    name: str
    done: int
    total: int


class Fetches:
    """Fetches under way. Who asks for the same model follows the same fetch; one that nobody
    follows any more ends, and what it has stays for the next."""

    def __init__(self) -> None:
        self._running: dict[str, _Fetch] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def follow(self, model: ModelConfig) -> AsyncIterator[FetchedPart]:
        """Each part that is further than it was, again and again until the model is on this
        machine; raises SourceError where it cannot be fetched."""
        fetch = self._running.get(model.model)
        if fetch is None:
            self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "fetch")
            fetch = self._running[model.model] = _Fetch(model, self._threads)
        fetch.followers += 1
        try:
            async for part in fetch.follow():
                yield part
        finally:
            fetch.followers -= 1
            if not fetch.followers:
                fetch.give_up()
                if self._running.get(model.model) is fetch:
                    del self._running[model.model]

    def under_way(self, model: str) -> bool:
        """Whether that reference is being fetched."""
        return model in self._running


class _Fetch:
    def __init__(self, model: ModelConfig, threads: ThreadPoolExecutor):
        self.followers = 0
        self._model = model
        self._parts: dict[str, FetchedPart] = {}
        self._given_up = threading.Event()
        self._work = asyncio.get_running_loop().run_in_executor(threads, self._fetch)

    def give_up(self) -> None:
        self._given_up.set()
        self._work.cancel()  # one that has not begun

    async def follow(self) -> AsyncIterator[FetchedPart]:
        told: dict[str, FetchedPart] = {}
        quiet = 0.0
        while not self._work.done():
            await asyncio.wait((self._work,), timeout=_LOOKS)
            quiet += _LOOKS
            news = [part for name, part in dict(self._parts).items() if told.get(name) != part]
            if not news and told and quiet >= _QUIET_SECONDS:
                news = [next(reversed(told.values()))]
            for part in news:
                told[part.name], quiet = part, 0.0
                yield part
        self._work.result()

    def _fetch(self) -> Path:
        """In a thread of its own; a progress report is where it can be ended."""
        model = self._model
        return resolve_model(
            model.model,
            download_dir=model.download_dir,
            revision=model.revision,
            progress=self._report,
        )

    def _report(self, name: str, done: int, total: int) -> None:
        if self._given_up.is_set():
            raise _GivenUpError("Nobody waits for the model any more.")
        self._parts[name] = FetchedPart(name, done, total)
