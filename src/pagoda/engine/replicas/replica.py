"""One of several engines of a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest
from pagoda.engine.processes.child import EngineChild, LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.kept import Spawn
from pagoda.text.media.base import Values


class Replica(EngineClient):
    """An engine whose requests may continue on another one when its process ends."""

    def __init__(self, config: EngineConfig, options: LaunchOptions, spawn: Spawn = EngineChild):
        super().__init__(config, options, spawn)
        self.lost: Callable[[str], None] = lambda cause: None
        """Called when its process ended, with the cause."""
        self.serves: Callable[[], None] = lambda: None
        """Called when it is ready, for the first time or after a restart."""

    def take_over(self, request: AddRequest, media: Mapping[str, Values], inbox: Inbox) -> None:
        """Continue a request of another engine. The queue always has room for it. Raises as
        `submit`."""
        self._require_ready()
        try:
            self._running.add([request], media, self._child.folder, inbox)
            self._child.end.send(request)
        except BaseException:
            self._running.forget(request.req_id)
            raise

    def give_up(self, request: AddRequest) -> dict[str, Values]:
        """Forget a request of a process that ended; the values of its media, by content hash.
        OSError where these cannot be read."""
        try:
            return {
                item.content_hash: np.load(self._child.folder / f"{item.content_hash}.npy")
                for item in request.media
            }
        finally:
            self._running.forget(request.req_id)

    def _on_ready(self) -> None:
        super()._on_ready()
        self.serves()

    def _on_death(self, cause: str) -> None:
        room = self._options.room
        if room is not None:  # the next process may ask the others what they have
            siblings = self.config.parallel.data_parallel_size
            room = msgspec.structs.replace(room, siblings=siblings)
            self._options = replace(self._options, room=room)
        self.lost(cause)
        super()._on_death(cause)

    def _on_end(self, cause: str) -> None:
        self.lost(cause)
        super()._on_end(cause)
