"""What is asked of an engine in the same words, whether one process answers or several."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pagoda.base.errors import ModelNotFoundError
from pagoda.core.messages import AddRequest, LoadedAdapter, RequestDelta
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.inbox import Inbox
from pagoda.text.media.base import Values

NO_MEDIA: Mapping[str, Values] = {}
# An adapter of some GB from a slow disk.
LOAD_SECONDS = 120.0


class Asking(ABC):
    adapters: KnownAdapters

    @abstractmethod
    def submit(
        self, requests: Sequence[AddRequest], media: Mapping[str, Values] = NO_MEDIA
    ) -> Inbox:
        """Send requests. What each step adds to them arrives in the inbox; the last delta of each
        has a finish_reason. Who leaves earlier calls `drop`. `media` are the values of their
        media, by content hash.

        Use an id once only: what a dropped request still sends would be taken for the next one's.
        Raises EngineDeadError when the engine is not ready or sleeps, QueueFullError when too many
        wait, RequestError for an id that is already running, and sends nothing then. Whatever else
        fails (OSError where a picture cannot be written) ends all of these requests and no other.
        """

    @abstractmethod
    def drop(self, req_ids: Iterable[str]) -> None:
        """Hear no more of requests, and stop those that still run."""

    @abstractmethod
    async def call(self, method: str, *args: Any, timeout: float = 10.0) -> Any:
        """Call a utility of the engine (`reset_prefix_cache`, `stats`, `check_integrity`).

        Raises RequestError with the engine's words if it fails, EngineDeadError if the engine
        is not ready, ends on the way, or does not answer within `timeout` seconds.
        """

    async def generate(
        self, req: AddRequest, media: Mapping[str, Values] = NO_MEDIA
    ) -> AsyncGenerator[RequestDelta, None]:
        """Send `req` and yield what was added to it since the last look, one step's work or
        several; the last delta has a finish_reason. Closing the iterator early aborts the request.

        Raises as `submit`, and EngineDeadError when the engine ends on the way.
        """
        inbox = self.submit([req], media)
        try:
            running = True
            while running:
                await inbox.arrival()
                for delta in inbox.take():
                    running = delta.finish_reason is None
                    yield delta
        finally:
            self.drop([req.req_id])

    async def load_adapter(self, name: str, path: str) -> None:
        """Let requests choose an adapter by a name, in place of what had the name before; requests
        that run with that finish. Raises as `call`."""
        before = self.adapters.named.get(name)
        loaded = msgspec.convert(await self._load(path), LoadedAdapter)
        self.adapters.named[name] = loaded
        if before is not None:
            await self._forget_adapter(before.identity)

    async def unload_adapter(self, name: str) -> None:
        """Have an adapter chosen no more; requests that run with it finish. Raises as `call`, and
        ModelNotFoundError for an unknown name."""
        self._require_ready()
        adapter = self.adapters.named.pop(name, None)
        if adapter is None:
            raise ModelNotFoundError(f"The lora adapter {name!r} cannot be found.", "lora_name")
        await self._forget_adapter(adapter.identity)

    @abstractmethod
    def _require_ready(self) -> object:
        """EngineDeadError where the engine cannot be asked now."""

    async def _load(self, path: str) -> Any:
        """What becomes a LoadedAdapter."""
        return await self.call("load_adapter", path, timeout=LOAD_SECONDS)

    async def _forget_adapter(self, identity: str) -> None:
        if not self.adapters.has(identity):
            await self.call("unload_adapter", identity)
