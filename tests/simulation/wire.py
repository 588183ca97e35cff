"""The two ends of the wire, in memory: the real bytes, in order, after a while."""

from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from pagoda.core.messages import AbortRequests, ClientMessage, EngineMessage, StepOutputs
from pagoda.engine.processes.transport import (
    UnreadableMessage,
    decode_output,
    decode_request,
    encode,
)
from tests.simulation.clock import Clock


class Wire:
    """One direction. Messages keep their order, as ZMQ's do, and are lost only with a process."""

    def __init__(self, clock: Clock, latency: Callable[[], float]):
        self._clock = clock
        self._latency = latency
        self._sent: deque[tuple[float, float, bytes]] = deque()
        """When each left and when it arrives, with its bytes."""
        self._last = 0.0
        self.on_arrival: Callable[[], None] = lambda: None

    def send(self, raw: bytes) -> None:
        left = self._clock.now()
        arrives = self._last = max(self._last, left + self._latency())
        self._sent.append((left, arrives, raw))
        self._clock.loop.call_at(arrives, self._arrived)

    def send_aside(self, raw: bytes) -> None:
        """Over a socket of its own, in order with nothing else."""
        left = self._clock.now()
        arrives = left + self._latency()
        place = sum(1 for _, earlier, _ in self._sent if earlier <= arrives)
        self._sent.insert(place, (left, arrives, raw))
        self._clock.loop.call_at(arrives, self._arrived)

    def pending(self) -> bool:
        return bool(self._sent) and self._sent[0][1] <= self._clock.now()

    def receive(self) -> bytes:
        return self._sent.popleft()[2]

    @property
    def on_the_way(self) -> float:
        """Seconds until all that was sent has arrived."""
        return max(0.0, self._last - self._clock.now())

    def sender_died(self, num_lost: int) -> int:
        """It sends nothing any more: what it would have sent later never left, and the last
        `num_lost` of what is on its way never arrive. How many messages are lost."""
        now, before = self._clock.loop.time(), len(self._sent)
        while self._sent and self._sent[-1][0] > now:
            self._sent.pop()
        for _ in range(num_lost):
            if self._sent and self._sent[-1][1] > now:
                self._sent.pop()
        return before - len(self._sent)

    def close(self) -> None:
        self._sent.clear()
        self.on_arrival = lambda: None

    def _arrived(self) -> None:
        self.on_arrival()


class SimClientEnd:
    """As `ClientEnd`: whoever watches is told of a message once, until `pending` says False."""

    def __init__(self, requests: Wire, outputs: Wire, log: Callable[[str, Any], None]):
        self._requests, self._outputs = requests, outputs
        self._log = log
        self._armed = True
        self.closed = False
        self.on_readable: Callable[[], None] | None = None
        outputs.on_arrival = self._wake

    def watch(self, on_readable: Callable[[], None] | None) -> None:
        self.on_readable = on_readable
        self._armed = True

    def pending(self) -> bool:
        pending = self._outputs.pending()
        self._armed = self._armed or not pending
        return pending

    def receive(self) -> EngineMessage:
        message = decode_output(self._outputs.receive())
        self._log("heard", message)
        return message

    def send(self, message: ClientMessage) -> None:
        if self.closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        self._log("tells", message)
        self._requests.send(encode(message))

    def close(self) -> None:
        self.closed = True
        self._requests.close()
        self._outputs.close()

    def _wake(self) -> None:
        if self._armed and self.on_readable is not None:
            self._armed = False
            self.on_readable()


class SimEngineEnd:
    """As `EngineEnd`, but for `wait`: the process waits by the loop."""

    def __init__(self, requests: Wire, outputs: Wire, on_send: Callable[[], None]):
        self._requests, self._outputs = requests, outputs
        self._on_send = on_send
        self._aborted: set[str] = set()
        self.num_late = 0
        """Tokens of requests that were aborted before."""

    def receive(self) -> ClientMessage | UnreadableMessage | None:
        if not self._requests.pending():
            return None
        message = decode_request(self._requests.receive())
        if isinstance(message, AbortRequests):
            self._aborted.update(message.req_ids)
        return message

    def send(self, message: EngineMessage) -> None:
        if self._aborted and isinstance(message, StepOutputs):
            told = [delta for delta in message.deltas if delta.req_id in self._aborted]
            self.num_late += sum(len(delta.token_ids) for delta in told)
        self._outputs.send(encode(message))
        self._on_send()

    def send_from_thread(self, message: EngineMessage) -> None:
        self._outputs.send_aside(encode(message))
