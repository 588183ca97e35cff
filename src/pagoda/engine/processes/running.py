"""The requests inside an engine: where their deltas go, and what it takes to run them again."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pagoda.base.log import get_logger
from pagoda.config.engine import SchedulerConfig
from pagoda.core.messages import AddRequest, RequestDelta, is_progress
from pagoda.engine.media import MediaFiles
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.queue_limit import QueueLimit
from pagoda.text.media.base import Values

log = get_logger(__name__)

# What nobody has said anything of could be run by the next engine. One that was inside of two
# deaths may be what the engine dies of.
_MOST_RUNS = 2


class RunningRequests:
    """By their ids, from their submission until their last delta."""

    def __init__(self, limits: SchedulerConfig) -> None:
        self.queue = QueueLimit(limits)
        self.media = MediaFiles()
        self._inboxes: dict[str, Inbox] = {}
        self._unheard: dict[str, AddRequest] = {}
        """Those of whose replies nothing came, in their order."""
        self._adapters: dict[str, str] = {}
        """Those of requests that have one."""

    def __len__(self) -> int:
        return len(self._inboxes)

    def __contains__(self, req_id: str) -> bool:
        return req_id in self._inboxes

    def add(
        self,
        requests: Sequence[AddRequest],
        media: Mapping[str, Values],
        folder: Path,
        inbox: Inbox,
    ) -> Inbox:
        """Keep requests, and write their pictures to `folder`. OSError where that fails; `forget`
        them then."""
        for request in requests:
            self.media.hold(request, folder, media)
        for request in requests:
            self._inboxes[request.req_id] = inbox
            self._unheard[request.req_id] = request
            if request.adapter is not None:
                self._adapters[request.req_id] = request.adapter
        inbox.runs += 1
        return inbox

    def hear(self, delta: RequestDelta) -> None:
        """Hand what was added to a request to its reader."""
        if not is_progress(delta):
            self._unheard.pop(delta.req_id, None)
        if self.queue.active:
            self.queue.forget(delta.req_id)
        inbox = self._inboxes.get(delta.req_id)
        if inbox is not None:
            inbox.put(delta)
            if delta.finish_reason is not None:
                del self._inboxes[delta.req_id]
                self._adapters.pop(delta.req_id, None)
                self.media.release(delta.req_id)

    def forget(self, req_id: str) -> None:
        self._inboxes.pop(req_id, None)
        self._unheard.pop(req_id, None)
        self._adapters.pop(req_id, None)
        self.queue.forget(req_id)
        self.media.release(req_id)

    def adapters(self) -> tuple[set[str], set[str]]:
        """Adapters of requests of whose replies something came, and those of the others."""
        waiting = {known for req_id, known in self._adapters.items() if req_id in self._unheard}
        begun = {known for req_id, known in self._adapters.items() if req_id not in self._unheard}
        return begun, waiting

    def end(self, cause: str) -> None:
        """End all of them."""
        for req_id, inbox in list(self._inboxes.items()):
            inbox.end(cause)
            self.forget(req_id)

    def end_begun(self, cause: str) -> None:
        """The engine died: end those that cannot be run again."""
        for req_id, inbox in list(self._inboxes.items()):
            if inbox.begun or inbox.runs >= _MOST_RUNS:
                inbox.end(cause)
                self.forget(req_id)

    def move(self, folder: Path) -> None:
        """Their pictures go to the folder of another engine; where that fails, all end."""
        try:
            self.media.move(self._unheard.values(), folder)
        except OSError as error:
            log.error("Pictures of requests that waited are lost: %s", error)
            self.end("The engine died, and the pictures of the request were lost.")

    def to_resend(self) -> Iterator[AddRequest]:
        """Those to be sent to a new engine, in the order in which they came."""
        for inbox in dict.fromkeys(self._inboxes.values()):
            inbox.runs += 1
        yield from self._unheard.values()
