"""`pagoda serve`: the engine's process first, everything slow on this side meanwhile."""

import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pagoda.base.collector import no_collections
from pagoda.base.errors import PagodaError
from pagoda.base.log import get_logger, setup_logging
from pagoda.base.words import message_of, told
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.mcp import read_mcp_config
from pagoda.config.server import ServerConfig, configured_keys
from pagoda.engine.processes.spawn import Spawner, spawn
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.processes.watchdog import Watchdog
from pagoda.engine.replicas.launch import Engine, launch
from pagoda.engine.served.text_side import fetch_model
from pagoda.planner.planned import Advice
from pagoda.server.http.listen import listening
from pagoda.server.http.tls import tls_context
from pagoda.server.keys.file import read_keys

_log = get_logger(__name__)

_SHOW_CURSOR = "\x1b[?25h\n"
# A fetch that used up the time still leaves the engine enough to say where it stands.
_LEAST_SECONDS = 0.1
_MAX_DESCRIPTORS = 65536


Launcher = Callable[[EngineConfig, ServerConfig, MemoryRoom | None], Engine]
# From one ASGI application to another; naming their type would import starlette.
Wrap = Callable[[Any], Any]
Advise = Callable[[PagodaError], Sequence[str]]


def run_server(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    launcher: Launcher | None = None,
    spawner: Spawner = spawn,
    more_models: Sequence[str] = (),
    wrap: Wrap | None = None,
    advise: Advise | None = None,
    advice: Advice | None = None,
) -> int:
    """Serve until a signal ends it; the exit code: 0, 1 after an error, 130 for an early Ctrl-C.

    `launcher` starts another engine than `pagoda.engine.processes.main`, whose processes are
    `spawner`'s. `more_models` are loaded when they are asked for. `wrap` puts pages in front of the
    API. `advise` says what would work where starting failed; `advice` plans further models while it
    runs.
    """
    launcher = launcher or partial(_launch, spawner)
    begun = time.monotonic()
    setup_logging(server_config.log_level, server_config.log_format)
    try:
        configured_keys(server_config)  # one that cannot be sent ends it here
        if server_config.api_key_file is not None:
            read_keys(Path(server_config.api_key_file))  # likewise
        read_mcp_config(server_config.mcp_config)  # likewise
        tls = tls_context(server_config)
        allow_many_connections()
        with listening(server_config) as listener:
            model = _fetch(engine_config.model, server_config.startup_timeout)
            if server_config.startup_timeout:
                left = server_config.startup_timeout - (time.monotonic() - begun)
                server_config = replace(server_config, startup_timeout=max(_LEAST_SECONDS, left))
            limit = server_config.models_memory
            room = None if limit is None else MemoryRoom(limit=limit)
            client = launcher(replace(engine_config, model=model), server_config, room)
            try:
                # They take 0.6 s, and the engine starts in that time.
                with no_collections():
                    import uvloop

                    from pagoda.engine.served.entries import find_models, model_entries
                    from pagoda.engine.served.fleet import Fleet, FleetLimits
                    from pagoda.server.lifecycle import Lifecycle

                    entries = model_entries(
                        engine_config,
                        more_models,
                        server_config.pin,
                        find_models(server_config.models_dir),
                    )
                    fleet = Fleet(
                        entries,
                        limits=FleetLimits(server_config.models_memory, server_config.idle_unload),
                        launcher=lambda config, room: launcher(config, server_config, room),
                    )
                    lifecycle = Lifecycle(listener, client, fleet, server_config, tls, wrap, advice)
                return uvloop.run(lifecycle.run())
            finally:
                client.kill()
    except PagodaError as error:
        # Threads that read the model's texts still end: the error stays the last that is seen.
        logging.getLogger("pagoda").setLevel(logging.ERROR)
        _log.error("%s", told(message_of(error)))
        for found in advise(error) if advise else ():
            for line in told(found).split("\n"):  # a log line has none of its own
                _log.error("%s", line)
        return 1
    except KeyboardInterrupt:
        return 130


def allow_many_connections() -> None:
    """Each takes a file descriptor, and shells give 1,024 where the system would give more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _fetch(model: ModelConfig, timeout: float) -> ModelConfig:
    """Here, where a progress bar is seen, so that the engine finds the model local."""
    watchdog = Watchdog(deadline_seconds=timeout, give_up=_give_up)
    watchdog.beat("fetch model")
    try:
        return fetch_model(model, lambda *_: watchdog.beat("fetch model"))
    finally:
        watchdog.close()


def _give_up(reason: str) -> NoReturn:
    """End the process from the watchdog's thread, whatever the others wait for."""
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)  # a progress bar had hidden it
    _log.error("%s", reason)
    sys.stderr.flush()
    os._exit(1)


def _launch(
    spawner: Spawner,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    room: MemoryRoom | None,
) -> Engine:
    return launch(
        engine_config,
        log_level=server_config.log_level,
        log_format=server_config.log_format,
        startup_timeout=server_config.startup_timeout,
        room=room,
        supervision=SupervisionLimits(
            server_config.engine_stall_timeout, server_config.max_engine_restarts
        ),
        spawner=spawner,
    )
