"""Sends what enters and leaves the prefix cache to routers, over ZeroMQ as vLLM does.

A PUB socket sends [topic, number, batch], a ROUTER socket sends batches again to whoever asks with
the number of the first one: [number, batch] each, then [-1, nothing]. Numbers are 8 bytes, big
endian, from 0 on; a batch is MessagePack of [time, events, data parallel rank].
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import zmq

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.config.kv_events import KVEventsConfig
from pagoda.core.kv_events import Event

log = get_logger(__name__)

_END = (-1).to_bytes(8, "big", signed=True)
# What was published last has so long to leave when the engine ends.
_LINGER_MS = 200
# The thread has so long to publish what waits.
_CLOSE_MS = 1000
_LOCAL = ("ipc://", "inproc://")


class KVPublisher:
    """Hands batches to a thread that owns the sockets: neither a subscriber that is slow nor one
    that asks for old batches holds a step up."""

    def __init__(self, config: KVEventsConfig, take: Callable[[], list[Event]], replica: int = 0):
        """`take`: the events since it was called last, of that one of a model's engines.
        ConfigError where an endpoint is taken."""
        config = config.of_replica(replica)
        self._take, self._replica = take, replica
        self._encode = msgspec.msgpack.Encoder().encode
        self._next = 0
        self._lost = 0
        self._context = zmq.Context()
        try:
            self._feed = self._context.socket(zmq.PUSH)
            self._feed.set_hwm(config.max_queue_size)
            self._feed.bind("inproc://feed")
            self._sockets = _Sockets(self._context, config)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._sockets.run, name="kv events", daemon=True)
        self._thread.start()
        where = "at {}" if _is_bound(config.endpoint) else "to {}, where a router has to listen"
        again = f", and again at {config.replay_endpoint}" if config.replay_endpoint else ""
        log.info(
            "KV events are published %s%s; they tell the token ids of requests.",
            where.format(config.endpoint), again,
        )  # fmt: skip

    def flush(self) -> None:
        """Publish what happened, in one batch; called between steps, and never waits."""
        events = self._take()
        if not events:
            return
        # The numbers of batches that are lost are missing, by which subscribers tell.
        number, self._next = self._next, self._next + 1
        batch = self._encode((time.time(), events, self._replica))
        try:
            self._feed.send_multipart((number.to_bytes(8, "big"), batch), zmq.NOBLOCK)
        except zmq.Again:
            self._lost += 1
            if self._lost == 1:
                log.warning("KV events are lost: they come faster than they can be sent.")

    def close(self) -> None:
        """Publish what is left, and give the ports back."""
        self.flush()
        self._feed.setsockopt(zmq.SNDTIMEO, _CLOSE_MS)
        with suppress(zmq.Again):
            self._feed.send(b"")
        self._thread.join(_CLOSE_MS / 1000)
        if not self._thread.is_alive():
            self._sockets.close()
            self._feed.close()
            self._context.term()


class _Sockets:
    """What the thread owns, made before it starts so that whoever starts it hears of ports that are
    taken."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", config: KVEventsConfig):
        self._topic = config.topic.encode()
        self._kept: deque[Sequence[bytes]] = deque(maxlen=config.buffer_steps)
        self._feed = context.socket(zmq.PULL)
        self._feed.set_hwm(config.max_queue_size)
        self._feed.connect("inproc://feed")
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        _open(self._pub, "endpoint", config.endpoint, _is_bound(config.endpoint))
        self._replay: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            self._replay = context.socket(zmq.ROUTER)
            # Room for all that is kept: a ROUTER drops what a client does not read in time.
            self._replay.set_hwm(config.buffer_steps + 1)
            _open(self._replay, "replay_endpoint", config.replay_endpoint, True)

    def run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._feed, self._replay):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._feed in ready:
                batch = self._feed.recv_multipart()
                if len(batch) == 1:
                    return  # whoever started the thread closes the sockets
                self._pub.send_multipart((self._topic, *batch))
                self._kept.append(batch)
            if self._replay is not None and self._replay in ready:
                self._send_again(self._replay)

    def close(self) -> None:
        """Called when `run` has returned."""
        for socket in (self._feed, self._pub, self._replay):
            if socket is not None:
                socket.close(linger=_LINGER_MS)

    def _send_again(self, replay: "zmq.Socket[bytes]") -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("A request for KV events is no number of 8 bytes behind an empty frame.")
            return
        client, _, first = frames
        for number, batch in self._kept:
            if number >= first:  # bytes of equal length, so as numbers
                replay.send_multipart((client, b"", number, batch))
        replay.send_multipart((client, b"", _END, b""))


def _is_bound(endpoint: str) -> bool:
    """As vLLM tells it: an address of everybody's is bound, and one that names a host is not."""
    return any(part in endpoint for part in ("*", "::")) or endpoint.startswith(_LOCAL)


def _open(socket: "zmq.Socket[bytes]", key: str, endpoint: str, is_bound: bool) -> None:
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        (socket.bind if is_bound else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"KV events cannot be published at {endpoint}: {error.strerror}. Give another {key} in "
            "--kv-events-config."
        ) from error
