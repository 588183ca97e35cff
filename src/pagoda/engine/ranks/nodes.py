"""The other machines of one engine, as rank 0 sees them. `engine.ranks.agent` runs on each.

A node lives as long as its connection: when it ends, both sides end the node's ranks.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.config.engine import EngineConfig
from pagoda.engine.ranks.link import LeaderEnd, RankLaunch, TcpPlace
from pagoda.engine.ranks.listening import Connection, Entering, NodeEnters, RefusedError, follow
from pagoda.engine.ranks.starter import EqualParts, LocalRank, StartedRank
from pagoda.engine.ranks.tcp import TcpLeader
from pagoda.weights.files import ModelFiles
from pagoda.weights.identity import weights_identity

log = get_logger(__name__)

BEAT_SECONDS = 1.0
LEADER_SILENCE = 60.0
"""Rank 0 that says nothing for so long is lost to a node; it says nothing while a library that it
loads holds Python's lock."""
_SILENCE_SECONDS = 10.0
_REPORT_SECONDS = 30.0
# The name of a machine that was only just started may not be known yet.
_NAME_SECONDS = 30.0
_LOST = 255


class NodeStart(msgspec.Struct, tag=True):
    launch: RankLaunch
    """Without the secret, which the node has."""


class EngineServes(msgspec.Struct, tag=True):
    """All ranks of all nodes have loaded, and requests are taken."""


class StillThere(msgspec.Struct, tag=True):
    """Both say so about once a second."""


class NodeExited(msgspec.Struct, tag=True):
    rank: int
    code: int
    cause: str


class NodeLeaves(msgspec.Struct, tag=True):
    """A node's last message."""

    cause: str


ToNode = NodeStart | EngineServes | StillThere
FromNode = NodeExited | NodeLeaves | StillThere


def sizes_of(config: EngineConfig) -> dict[str, int]:
    """Flags that must be the same on all machines. Of all others rank 0's count."""
    return {
        "--nnodes": config.nodes.nnodes,
        "--tensor-parallel-size": config.parallel.tensor_parallel_size,
        "--pipeline-parallel-size": config.parallel.pipeline_parallel_size,
    }


def model_identity(config: EngineConfig, files: ModelFiles) -> str:
    """What tells the model's weight files from others, on any machine."""
    if config.model.load_format == "dummy":
        return "random"
    return weights_identity(files.weight_paths())


@dataclass(eq=False)
class _Node:
    number: int
    connection: Connection
    ended: dict[int, NodeExited] = field(default_factory=dict)
    lost: str | None = None

    def send(self, message: ToNode) -> None:
        # Its reader sees that it is gone.
        with contextlib.suppress(OSError):
            self.connection.send(msgspec.msgpack.encode(message))


class _RemoteRank:
    """A rank on another machine."""

    def __init__(self, node: _Node, rank: int):
        self._node, self._rank = node, rank

    def poll(self) -> int | None:
        ended = self._node.ended.get(self._rank)
        if ended is not None:
            return ended.code
        return None if self._node.lost is None else _LOST

    def cause(self) -> str:
        ended, node = self._node.ended.get(self._rank), self._node
        if ended is not None:
            return f"On node {node.number} ({node.connection.peer}): {ended.cause}"
        return node.lost or ""

    def kill(self) -> None:
        """All of the node's: they end together."""
        self._node.connection.close()

    def wait(self) -> None:
        """The node takes part in no other start before they are gone."""


class NodeStarter(EqualParts):
    """Waits for the other machines and starts ranks on all of them."""

    def __init__(self, config: EngineConfig, model: str):
        """`model` is what tells the weight files from others. ConfigError where nobody can connect
        to this machine as the flags say."""
        nodes = config.nodes
        self.num_beside = nodes.share(config.parallel.num_ranks)
        self._count = nodes.nnodes
        self._sizes, self._model = sizes_of(config), model
        self._nodes: dict[int, _Node] = {}
        self._changed = threading.Condition()
        self._started = False
        self._closed = threading.Event()
        address, secret = _resolved(nodes.master_addr), nodes.secret()
        size = config.parallel.num_ranks
        self.link: LeaderEnd = TcpLeader(address, nodes.master_port, size, secret, self)
        threading.Thread(target=self._beat, name="nodes", daemon=True).start()

    def wait(self, awaits: Callable[[str], None]) -> None:
        """Until all are here, however long that takes; `awaits` hears about once a second of
        those that are not."""
        place = self.link.place
        assert isinstance(place, TcpPlace)
        reported = time.monotonic() - _REPORT_SECONDS
        while missing := self._missing():
            numbers = ", ".join(map(str, missing))
            which = "node" if len(missing) == 1 else "nodes"
            awaits(f"{which} {numbers} at {place.host} port {place.port}")
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                log.info(
                    "Waiting at %s port %d for --node-rank %s of --nnodes %d.",
                    place.host, place.port, numbers, self._count,
                )  # fmt: skip
            with self._changed:
                if len(self._nodes) < self._count - 1:
                    self._changed.wait(BEAT_SECONDS)

    def _missing(self) -> list[int]:
        """Nodes that are yet to come; with none, the start begins."""
        with self._changed:
            missing = [number for number in range(1, self._count) if number not in self._nodes]
            self._started = not missing
        return missing

    def start(self, launch: RankLaunch) -> StartedRank:
        number, index = divmod(launch.rank, self.num_beside)
        launch = msgspec.structs.replace(launch, device_index=index)
        if not number:
            return LocalRank(launch)
        assert isinstance(launch.place, TcpPlace)
        place = msgspec.structs.replace(launch.place, secret=b"")
        node = self._nodes[number]
        node.send(NodeStart(msgspec.structs.replace(launch, place=place)))
        return _RemoteRank(node, launch.rank)

    def serves(self) -> None:
        for node in self._nodes.values():
            node.send(EngineServes())

    def close(self) -> None:
        self._closed.set()
        for node in list(self._nodes.values()):
            node.connection.close()
        self.link.close()

    def check(self, who: Entering) -> None:
        assert isinstance(who, NodeEnters)
        for flag, own in self._sizes.items():
            other = who.sizes.get(flag)
            if other != own:
                raise RefusedError(f"node {who.node_rank} has {flag} {other}, and node 0 has {own}")
        if who.model != self._model:
            raise RefusedError(
                f"node {who.node_rank} has other weight files than node 0; give all machines the "
                "same files"
            )
        if not 0 < who.node_rank < self._count:
            raise RefusedError(f"there is no --node-rank {who.node_rank} of {self._count}")
        if who.node_rank in self._nodes:
            raise RefusedError(f"there is a node {who.node_rank} already", for_now=True)

    def enter(self, who: Entering, connection: Connection) -> None:
        assert isinstance(who, NodeEnters)
        connection.be_heard(_SILENCE_SECONDS)
        node = _Node(who.node_rank, connection)
        with self._changed:
            if who.node_rank in self._nodes or self._closed.is_set():
                connection.close()
                return
            self._nodes[who.node_rank] = node
            self._changed.notify_all()
        log.info("Node %d is here: %s.", node.number, connection.peer)
        follow(connection, lambda raw: self._take(node, raw), lambda error: self._lose(node, error))

    def _take(self, node: _Node, raw: bytes) -> None:
        message = msgspec.msgpack.decode(raw, type=FromNode)
        if isinstance(message, NodeExited):
            node.ended[message.rank] = message
        elif isinstance(message, NodeLeaves):
            node.lost = f"Node {node.number} ({node.connection.peer}) {message.cause}."

    def _lose(self, node: _Node, error: Exception) -> None:
        said = "its process or the connection to it ended"
        if isinstance(error, TimeoutError):
            said = f"it said nothing for {_SILENCE_SECONDS:g} s"
        node.lost = node.lost or f"Node {node.number} ({node.connection.peer}) is lost; {said}."
        node.connection.close()
        with self._changed:
            if not self._started and self._nodes.get(node.number) is node:
                del self._nodes[node.number]
                log.warning("%s", node.lost)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            for node in list(self._nodes.values()):
                node.send(StillThere())


def _resolved(name: str) -> str:
    """The numbers of an address."""
    deadline = time.monotonic() + _NAME_SECONDS
    told = False
    while True:
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConfigError(f"--master-addr {name} has no address: {error}.") from error
            if not told:
                log.info(
                    "--master-addr %s has no address yet (%s); waiting %.0f s for one.",
                    name, error.strerror or error, _NAME_SECONDS,
                )  # fmt: skip
            told = True
            time.sleep(BEAT_SECONDS)
