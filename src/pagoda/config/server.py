"""Everything the HTTP server can be told."""

import math
from dataclasses import dataclass

from pagoda.base.units import parse_size
from pagoda.config.option import Options, option

_AT_LEAST_0 = (0, math.inf)


@dataclass(frozen=True)
class ServerConfig(Options):
    """How the API is offered."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 opens it to the network.")
    port: int = option(8000, "Port to listen on; 0 picks a free one.", bounds=(0, 65535))
    api_key: tuple[str, ...] = option((), "Keys that clients must send; also PAGODA_API_KEY.")
    startup_timeout: float = option(
        0.0, "Give up when not ready after so many seconds; 0 waits.", bounds=_AT_LEAST_0
    )
    shutdown_timeout: float = option(
        0.0,
        "Seconds that running requests may take to finish when the server is told to stop.",
        bounds=_AT_LEAST_0,
    )
    enable_log_requests: bool = option(False, "Log each request's parameters (not its text).")
    disable_log_stats: bool = option(False, "No throughput line every ten seconds.")
    disable_uvicorn_access_log: bool = option(False, "No line per HTTP request.")
    log_format: str = option("text", "Form of log lines.", choices=("text", "json"))
    log_level: str = option(
        "info", "Least important level that is logged.",
        choices=("debug", "info", "warning", "error"), aliases=("--uvicorn-log-level",),
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = option((), "Origins of web pages that may call the API.")
    models_dir: str | None = option(
        None, "Folder of further models: each GGUF file and each folder in it, by its name."
    )
    models_memory: int | None = option(
        None,
        "Memory that all loaded models together may be planned to take, such as 20G; by default "
        "what the machine has.",
        parse=parse_size, bounds=(1, math.inf),
    )  # fmt: skip
    pin: tuple[str, ...] = option((), "Models that are never unloaded to make room, by name.")
    idle_unload: float = option(
        0.0,
        "Unload a model that was not used for so many seconds; the next request loads it again. "
        "0 never does.",
        bounds=(-1, math.inf), aliases=("--sleep-idle-seconds",),
    )  # fmt: skip
    responses_store: str | None = option(
        None,
        "SQLite file that keeps what /v1/responses answered over restarts, up to 1 GiB; by default "
        "memory does, up to 64 MiB.",
    )
    max_body_bytes: int = option(
        32 * 1024 * 1024, "Largest request body, such as 32M.",
        parse=parse_size, bounds=(1024, math.inf),
    )  # fmt: skip
