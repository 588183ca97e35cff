"""`pagoda serve --headless`: this machine's ranks of an engine whose rank 0 runs elsewhere."""

import queue
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from pagoda.base.log import get_logger
from pagoda.config.engine import EngineConfig
from pagoda.engine.ranks.link import RankLaunch, TcpPlace
from pagoda.engine.ranks.listening import Connection, NodeEnters, RefusedError, enter, follow
from pagoda.engine.ranks.nodes import (
    BEAT_SECONDS,
    LEADER_SILENCE,
    EngineServes,
    FromNode,
    NodeExited,
    NodeLeaves,
    NodeStart,
    StillThere,
    ToNode,
    model_identity,
    sizes_of,
)
from pagoda.engine.ranks.starter import LocalRank
from pagoda.engine.served.text_side import fetch_model
from pagoda.weights.files import open_model

log = get_logger(__name__)

_RETRY_SECONDS = 1.0
_REPORT_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class _Stopped(BaseException):
    """A signal asks this process to end."""


def run_node(config: EngineConfig) -> int:
    """Until a signal ends it; the exit code: 0, or 1 when rank 0 does not want this machine.
    ConfigError for a model or a secret that is not there."""
    number, handlers = config.nodes.node_rank, dict[signal.Signals, Any]()

    def stop(signum: int, frame: FrameType | None) -> None:
        for each in handlers:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(f"was stopped by {signal.Signals(signum).name}")

    for each in (signal.SIGTERM, signal.SIGINT):
        handlers[each] = signal.signal(each, stop)
    try:
        return _run(config, number)
    except _Stopped as why:
        log.info("Node %d %s.", number, why)
        return 0
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _run(config: EngineConfig, number: int) -> int:
    nodes, secret = config.nodes, config.nodes.secret()
    path = Path(fetch_model(config.model).model)
    files = open_model(path, config.model.mmproj)
    who = NodeEnters(number, sizes_of(config), model_identity(config, files))
    reported = 0.0
    while True:
        try:
            connection = enter(nodes.master_addr, nodes.master_port, secret=secret, who=who)
        except (RefusedError, OSError) as error:
            if isinstance(error, RefusedError) and not error.for_now:
                log.error("Node 0 refuses this machine: %s.", error)
                return 1
            if not reported or time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                log.info(
                    "Waiting for node 0 at %s port %d (%s).",
                    nodes.master_addr, nodes.master_port, getattr(error, "strerror", None) or error,
                )  # fmt: skip
            time.sleep(_RETRY_SECONDS)
        else:
            log.info("Node %d of %d takes part.", number, nodes.nnodes)
            reason = _Visit(config, path, secret, connection).run()
            log.warning(
                "Node 0 is lost: %s. This machine's ranks are ended; waiting for node 0 at %s "
                "port %d.", reason, nodes.master_addr, nodes.master_port,
            )  # fmt: skip
            reported = time.monotonic()


class _Visit:
    """One start of an engine, which the connection outlives by nothing."""

    def __init__(self, config: EngineConfig, path: Path, secret: bytes, connection: Connection):
        self._model, self._path, self._secret = config.model, path, secret
        self._nodes = config.nodes
        self._connection = connection
        self._ranks: dict[int, LocalRank] = {}
        self._told: set[int] = set()
        self._orders: queue.SimpleQueue[ToNode | Exception] = queue.SimpleQueue()

    def run(self) -> str:
        """Start and watch ranks until rank 0 is gone; why."""
        connection, put = self._connection, self._orders.put
        connection.be_heard(LEADER_SILENCE)
        follow(connection, lambda raw: put(msgspec.msgpack.decode(raw, type=ToNode)), put)
        beat = 0.0
        try:
            while True:
                if time.monotonic() - beat >= BEAT_SECONDS:
                    beat = time.monotonic()
                    self._say(StillThere())
                self._look()
                order = self._next()
                if isinstance(order, NodeStart):
                    self._start(order.launch)
                elif isinstance(order, EngineServes):
                    log.info(
                        "Node %d of %d serves: all nodes are here and have loaded the model.",
                        self._nodes.node_rank, self._nodes.nnodes,
                    )  # fmt: skip
                elif isinstance(order, TimeoutError):
                    return f"it said nothing for {LEADER_SILENCE:g} s"
                elif isinstance(order, Exception):
                    return "its engine or the connection to it ended"
        except _Stopped as why:
            self._say(NodeLeaves(str(why)))
            raise
        finally:
            for rank in self._ranks.values():
                rank.kill()
            for rank in self._ranks.values():
                rank.wait()
            connection.close()

    def _next(self) -> ToNode | Exception | None:
        try:
            return self._orders.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return None

    def _start(self, launch: RankLaunch) -> None:
        """With this machine's own files and secret."""
        assert isinstance(launch.place, TcpPlace)
        launch = msgspec.structs.replace(
            launch,
            config=replace(
                launch.config, model=replace(launch.config.model, mmproj=self._model.mmproj)
            ),
            model_path=str(self._path),
            place=msgspec.structs.replace(launch.place, secret=self._secret),
        )
        log.info("Rank %d starts.", launch.rank)
        self._ranks[launch.rank] = LocalRank(launch)

    def _look(self) -> None:
        """Tell of ranks that have ended."""
        for number, rank in self._ranks.items():
            code = rank.poll()
            if code is not None and number not in self._told:
                self._told.add(number)
                log.error("%s", rank.cause())
                self._say(NodeExited(number, code, rank.cause()))

    def _say(self, message: FromNode) -> None:
        try:
            self._connection.send(msgspec.msgpack.encode(message))
        except OSError as error:
            self._orders.put(error)
