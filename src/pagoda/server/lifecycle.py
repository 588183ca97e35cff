"""The life of the server process: answer, load, serve, drain, leave nothing behind."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future

import uvicorn
from starlette.types import ASGIApp

from pagoda.base import runfile
from pagoda.base.errors import EngineDeadError, PagodaError
from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.config.server import ServerConfig, asks_for_key
from pagoda.core.messages import EngineProgress
from pagoda.engine.aside.direct import Aside
from pagoda.engine.aside.workers import start_workers
from pagoda.engine.processes.watchdog import situation
from pagoda.engine.replicas.launch import Engine
from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model import ServedModel, both_sides
from pagoda.engine.served.text_side import TextSide, load_text_side
from pagoda.engine.start.progress import StartupDisplay
from pagoda.planner.planned import Advice
from pagoda.server.app import create_app
from pagoda.server.context import Context
from pagoda.server.http.listen import base_url, is_loopback
from pagoda.server.http.looplag import LoopLag
from pagoda.server.http.websocket import websocket_options
from pagoda.server.http1 import StreamingProtocol
from pagoda.server.responses.registry import Responses
from pagoda.server.stats import log_stats

_log = get_logger(__name__)

# A reply that is being written when the server stops may take so many seconds more.
_GRACE = 1
_TEXT_PHASE = "load tokenizer and chat template"


class _HttpServer(uvicorn.Server):
    """Leaves the signals alone: stopping begins with the engine."""

    def __init__(self, config: uvicorn.Config, lag: LoopLag):
        super().__init__(config)
        self._lag = lag

    async def on_tick(self, counter: int) -> bool:
        self._lag.tick()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Lifecycle:
    def __init__(
        self,
        listener: socket.socket,
        client: Engine,
        fleet: Fleet,
        config: ServerConfig,
        tls: ssl.SSLContext | None = None,
        wrap: Callable[[ASGIApp], ASGIApp] | None = None,
        advice: Advice | None = None,
    ):
        """`client` is the engine of the fleet's first model, which starts already."""
        self._listener = listener
        self._client = client
        self._fleet = fleet
        self._config = config
        self._url = base_url(listener, "https" if tls else "http")
        # uvicorn closes the listener. A unix socket has no port, so nobody looks for one.
        self._port: int | None = None if config.uds else listener.getsockname()[1]
        app = create_app(Fleet(), config, advice)
        self._context: Context = app.state.context
        self._context.phase = lambda: client.phase
        self._responses: Responses = app.state.responses
        self._http = _HttpServer(
            _uvicorn_config(wrap(app) if wrap else app, config, tls), self._context.metrics.lag
        )
        self._stop = asyncio.Event()
        self._work: Aside | None = None

    async def run(self) -> int:
        """Serve until a signal; the exit code.

        Raises what loading raises, and EngineDeadError when the first model's engine is given up.
        """
        loop = asyncio.get_running_loop()
        if self._port is not None:
            runfile.register(self._port)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        stop = asyncio.create_task(self._stop.wait())
        starting = asyncio.create_task(self._start())
        given_up = asyncio.create_task(self._engine_given_up())
        beside = [asyncio.create_task(work) for work in self._beside()]
        try:
            await asyncio.wait((starting, stop, http), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait((stop, http, given_up), return_when=asyncio.FIRST_COMPLETED)
            if given_up.done() and not self._stop.is_set():
                raise EngineDeadError(given_up.result())
            return 0 if self._stop.is_set() else 1
        finally:
            for task in (*beside, starting, stop, given_up):
                task.cancel()
            await self._end(http)

    async def _start(self) -> None:
        """Load the text side while the engine loads, then open the doors."""
        display = StartupDisplay()

        def progress(step: EngineProgress) -> None:
            self._context.starting = step
            display.update(step)

        timeout = self._config.startup_timeout or None
        try:
            text = await both_sides(
                self._load_text_side(timeout),
                self._client,
                timeout=timeout,
                progress=progress,
            )
        finally:
            display.close()
        served = self._fleet.adopt(self._client, text, self._work)
        self._context.fleet = self._fleet
        self._announce(served)

    async def _load_text_side(self, timeout: float | None) -> TextSide:
        """In a thread that nothing waits for when it hangs, not even the end of the process; and
        start the workers, which load it too."""
        loaded: Future[TextSide] = Future()
        # Whoever stops waiting cannot cancel it then, and what the thread finds has a place.
        loaded.set_running_or_notify_cancel()

        def load() -> None:
            try:
                # The client's config names the model by its local path.
                loaded.set_result(load_text_side(self._client.config.model))
            except BaseException as error:  # noqa: BLE001 - raised again by who waits
                loaded.set_exception(error)

        threading.Thread(target=load, name="text-side", daemon=True).start()
        try:
            text = await asyncio.wait_for(asyncio.wrap_future(loaded), timeout)
        except TimeoutError:
            for line in situation(_TEXT_PHASE, timeout or 0):
                _log.warning("%s", line)
            raise PagodaError(
                f"Start-up was not finished after {format_seconds(timeout or 0)} "
                f"(phase: {_TEXT_PHASE}); --startup-timeout ends it."
            ) from None
        # One behind the other: of two cores, the engine needs one.
        self._work = start_workers(self._client.config.model)
        return text

    def _announce(self, served: ServedModel) -> None:
        more = len(self._fleet.entries) - 1
        others = f" and {more} more when asked for" if more else ""
        path = f"{self._config.root_path}/v1"
        if self._port is None:
            path = f", {path}"
        whose = reach(self._config, self._listener)
        if self._config.webui and self._port is not None:
            _log.info("Chat page: %s%s/", self._url, self._config.root_path)
        _log.info("Ready: %s%s at %s%s%s", served.names[0], others, self._url, path, whose)

    async def _engine_given_up(self) -> str:
        """Why the first model's engine is started no more, once that is so: who supervises this
        process may start it anew. It may be unloaded and loaded again meanwhile."""
        first = self._fleet.entries[0]
        changes = self._fleet.listen()
        while True:
            if first.served is not None:
                await first.served.client.wait_end()
                if first.served is not None and first.served.client.state == "dead":
                    return f"The engine was given up. {first.cause}"
            await changes.get()

    def _beside(self) -> Iterator[Coroutine[None, None, None]]:
        """What goes on while the server runs."""
        yield self._log_stats()
        yield self._watch_idle()
        if self._context.keyring is not None:
            yield self._context.keyring.ledger.keep_saved()

    async def _log_stats(self) -> None:
        if not self._config.disable_log_stats:
            await log_stats(self._fleet.models)

    async def _watch_idle(self) -> None:
        await self._fleet.watch_idle()

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            _log.warning("Stopping at once.")
            # An engine may have no process just now: its last one's id can be another's.
            for client in (self._client, *(served.client for served in self._fleet.models())):
                client.kill()
            self._http.force_exit = True
            return
        drain = self._config.shutdown_timeout
        patience = f"; running requests get {drain:g} s, a second signal ends them" if drain else ""
        _log.info("Stopping on %s%s.", signal.Signals(number).name, patience)
        self._stop.set()

    async def _end(self, http: "asyncio.Task[None]") -> None:
        """No new requests, then the engine, then whoever is still connected."""
        self._http.should_exit = True
        drain = self._config.shutdown_timeout
        with contextlib.suppress(PagodaError):
            # The first engine is the fleet's only once it has started.
            await asyncio.gather(self._fleet.shutdown(drain), self._client.shutdown(drain))
        if self._work is not None:
            await self._work.close()
        await self._end_http(http)
        await self._context.mcp.close()
        await self._responses.close()
        if self._context.keyring is not None:
            await self._context.keyring.ledger.save()
        if self._port is not None:
            runfile.unregister(self._port)

    async def _end_http(self, http: "asyncio.Task[None]") -> None:
        """Replies end with their engines; who is still being written to gets a moment more."""
        done, _ = await asyncio.wait((http,), timeout=_GRACE)
        replies = () if done else tuple(self._http.server_state.tasks)
        if replies:
            _log.warning("Requests that were cut off at the end: %d.", len(replies))
            for reply in replies:
                reply.cancel()
            await asyncio.wait(replies, timeout=_GRACE)
        http.cancel()
        await asyncio.gather(http, return_exceptions=True)


def reach(config: ServerConfig, listener: socket.socket) -> str:
    """Who may use the server, for the log; empty where a key says it."""
    if config.uds:
        return " (this user only)"
    if is_loopback(listener):
        return " (this machine only; --host 0.0.0.0 opens it)"
    if not asks_for_key(config):
        return " (open to everyone who reaches it; --api-key asks for a key)"
    return ""


def _uvicorn_config(
    app: object, config: ServerConfig, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    # Our middleware writes the access log; of uvicorn only what goes wrong is worth a line.
    logger = logging.getLogger("uvicorn")
    logger.handlers = list(logging.getLogger("pagoda").handlers)
    logger.propagate = False
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # uvicorn has an ASGI type of its own
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=StreamingProtocol,
        **websocket_options(config),
        server_header=False,
        ssl_context_factory=None if tls is None else lambda *_: tls,
        # An engine takes its time to leave, and its replies end with it: `_end_http` has the limit.
        timeout_graceful_shutdown=None,
    )
