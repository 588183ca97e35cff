"""The two ends of the wire between a client and its engine process.

Two one-way ZMQ sockets over ipc in a folder that only this user can enter. The receiver binds
and the sender connects, so that what is sent before the other side exists waits in the queue.
"""

import threading
from pathlib import Path

import msgspec
import zmq

from pagoda.config.engine import EngineConfig
from pagoda.core.messages import ClientMessage, EngineMessage

_ENCODER = msgspec.msgpack.Encoder()
_FROM_CLIENT: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_FROM_ENGINE: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)

# A last message (EngineDied) may take so long to leave before the process does.
_LINGER_MS = 500
# Longest wait until a sender notices that its receiver has bound; ZMQ's own default is 100.
_RECONNECT_MS = 10
# Operations of zmq's own flag type take a microsecond each.
_POLLIN = int(zmq.POLLIN)


class MemoryRoom(msgspec.Struct):
    """What other engines on this machine leave, as far as the system does not show it."""

    reserved: int = 0
    """Bytes that they were promised and have not touched yet."""
    limit: int | None = None
    """Most bytes that this one may take."""
    cpu_part: int | None = None
    """Most of a CPU's free memory that counts for this one, one of several replicas."""
    first_gpu: int = 0
    """Those before are other replicas'."""
    replica: int = 0
    """Which of them this one is."""
    siblings: int = 0
    """How many of them there are, itself included, where the others serve already; else 0."""
    least_context: int = 0
    """With fewer tokens of context than this (or the model's own) there is no room for it."""


class Launch(msgspec.Struct):
    """What the engine process is told on its standard input: one line of JSON.

    The input stays open, and its end tells the process that its parent is gone.
    """

    config: EngineConfig
    folder: str
    """Where the sockets are."""
    log_level: str = "info"
    log_format: str = "text"
    startup_timeout: float = 0.0
    launched_at: float = 0.0
    """time.time() of the launch."""
    room: MemoryRoom | None = None


class UnreadableMessage(msgspec.Struct):
    """A message that is not of any known form; `req_id` where it names a request."""

    reason: str
    req_id: str | None = None


def encode(message: ClientMessage | EngineMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_request(raw: bytes) -> ClientMessage | UnreadableMessage:
    """What a client sent."""
    try:
        return _FROM_CLIENT.decode(raw)
    except msgspec.MsgspecError as error:
        return UnreadableMessage(str(error), _req_id(raw))


def decode_output(raw: bytes) -> EngineMessage:
    """What an engine sent."""
    return _FROM_ENGINE.decode(raw)


class EngineEnd:
    """The engine process's end."""

    def __init__(self, folder: Path):
        self._context = zmq.Context()
        self._requests = receiver(self._context, folder / "requests")
        self._outputs = sender(self._context, folder / "outputs")
        self._from_threads = sender(self._context, folder / "outputs")
        self._lock = threading.Lock()

    def wait(self, timeout_ms: int, fd: int | None = None) -> bool:
        """Sleep until a message is there, or `fd` is readable; False when the time passes first."""
        if fd is None:
            return self._requests.poll(timeout_ms) != 0
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(fd, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def receive(self) -> ClientMessage | UnreadableMessage | None:
        """The next message, or None at once."""
        try:
            raw = self._requests.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return decode_request(raw)

    def send(self, message: EngineMessage) -> None:
        self._outputs.send(encode(message))

    def send_from_thread(self, message: EngineMessage) -> None:
        """As `send`, from any thread: over a socket of its own. Nothing once this end is closed."""
        with self._lock:
            if not self._from_threads.closed:
                self._from_threads.send(encode(message))

    def close(self) -> None:
        """Send what is queued, for a bounded time, and close."""
        self._requests.close(linger=0)
        self._outputs.close(linger=_LINGER_MS)
        with self._lock:
            self._from_threads.close(linger=_LINGER_MS)
        self._context.term()


class ClientEnd:
    """The client's end; `fileno` turns readable when messages arrive (edge-triggered)."""

    def __init__(self, folder: Path):
        self._context = zmq.Context()
        self._outputs = receiver(self._context, folder / "outputs")
        self._requests = sender(self._context, folder / "requests")

    def fileno(self) -> int:
        return int(self._outputs.getsockopt(zmq.FD))

    def pending(self) -> bool:
        """Asking re-arms `fileno`, so ask until it says False."""
        return bool(int(self._outputs.getsockopt(zmq.EVENTS)) & _POLLIN)

    def receive(self) -> EngineMessage:
        """The next message; ask `pending` first."""
        return decode_output(self._outputs.recv(zmq.NOBLOCK))

    def send(self, message: ClientMessage) -> None:
        self._requests.send(encode(message))

    def close(self) -> None:
        self._context.destroy(linger=0)


def receiver(context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> "zmq.Socket[bytes]":
    """One that takes whatever comes: bound to `path`."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(f"ipc://{path}")
    return socket


def sender(context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> "zmq.Socket[bytes]":
    """One to whoever binds `path`, without a high-water mark: a slow reader must never block the
    engine's loop."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.connect(f"ipc://{path}")
    return socket


def _req_id(raw: bytes) -> str | None:
    try:
        fields = msgspec.msgpack.decode(raw)
    except msgspec.MsgspecError:
        return None
    req_id = fields.get("req_id") if isinstance(fields, dict) else None
    return req_id if isinstance(req_id, str) else None
