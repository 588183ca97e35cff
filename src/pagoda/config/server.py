"""Everything the HTTP server can be told."""

import math
from dataclasses import dataclass

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.units import parse_size
from pagoda.config.option import Options, option

_AT_LEAST_0 = (0, math.inf)


def _root_path(text: str) -> str:
    path = text.strip("/")
    return "/" + path if path else ""


TOOLS = (
    "read_file", "file_glob_search", "grep_search", "exec_shell_command", "write_file",
    "edit_file", "get_info",
)  # fmt: skip


def tool_names(text: str) -> tuple[str, ...]:
    """The tools that --tools names. ConfigError for one that there is not."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*TOOLS, "all"):
            raise ConfigError(
                f"--tools names {name!r}; there are {', '.join(TOOLS)}, and `all` for all of them."
            )
    return TOOLS if "all" in names else tuple(name for name in TOOLS if name in names)


def check_key(key: str, source: str) -> None:
    """ConfigError for a key that no client could send, which names its `source` and never shows
    it."""
    fault = ""
    if not key:
        fault = "is empty; name a key, or leave it out to open the API to everyone"
    elif key != key.strip():
        fault = (
            "begins or ends with a space or a line break, which HTTP takes off what clients send; "
            "leave that out"
        )
    elif not (key.isascii() and key.isprintable()):
        fault = (
            "holds characters that do not travel in an HTTP header; use letters, digits and signs "
            "of ASCII"
        )
    if fault:
        raise ConfigError(f"{source} {fault}.")


@dataclass(frozen=True)
class ServerConfig(Options):
    """How the API is offered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.api_key:
            check_key(key, "--api-key")
        tool_names(self.tools)

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 opens it to the network.")
    port: int = option(8000, "Port to listen on; 0 picks a free one.", bounds=(0, 65535))
    uds: str | None = option(
        None, "Unix socket to listen on instead; only this user may connect to it (mode 0600)."
    )
    root_path: str = option(
        "", "Path under which a reverse proxy offers the API, such as /llm.",
        aliases=("--api-prefix",), parse=_root_path,
    )  # fmt: skip
    api_key: tuple[str, ...] = option(
        (),
        "Key that clients must send; also PAGODA_API_KEY. Several are written one after another, "
        "or with the flag repeated; a comma is part of a key.",
    )
    api_key_file: str | None = option(
        None,
        "File of further keys by name, with their limits, models and usage, which `pagoda keys` "
        "writes; read again when it changes.",
    )
    ssl_certfile: str | None = option(
        None, "Certificate (PEM, with its chain): the API is served over TLS.",
        aliases=("--ssl-cert-file",),
    )  # fmt: skip
    ssl_keyfile: str | None = option(
        None, "The certificate's private key, where it has a file of its own.",
        aliases=("--ssl-key-file",),
    )  # fmt: skip
    ssl_ca_certs: str | None = option(
        None, "Authorities (PEM) that certificates of clients must come from."
    )
    ssl_cert_reqs: int = option(
        0, "Certificates of clients: 0 asks for none, 1 checks one that is sent, 2 demands one.",
        bounds=(0, 2),
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Further names of this server, as they stand in URLs; `*` takes any. By default a server "
        "of this machine alone answers to localhost, its host name and addresses, one that is "
        "open to the network to every name.",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Origins of web pages that may call the API, such as https://chat.example; `localhost` for "
        "those of this machine, whatever their ports, `*` for all.",
    )
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that those pages may use.")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that those pages may send.")
    allow_credentials: bool = option(
        False,
        "Those pages may send cookies and client certificates.",
        aliases=("--cors-credentials",),
    )
    startup_timeout: float = option(
        0.0, "Give up when not ready after so many seconds; 0 waits.", bounds=_AT_LEAST_0
    )
    engine_stall_timeout: float = option(
        300.0,
        "Kill an engine that makes no progress for so many seconds (5 at least), and start it "
        "again; a step may always take four times as long as the longest one before it. 0 waits "
        "for ever.",
        bounds=_AT_LEAST_0,
    )
    max_engine_restarts: int = option(
        5,
        "How often in a row an engine that dies is started again, at once, then after 1, 2, 4, ... "
        "60 s, before the server ends with exit code 1; 10 minutes of service start the count "
        "anew. -1 is no limit.",
        bounds=(-1, math.inf),
    )
    shutdown_timeout: float = option(
        0.0,
        "Seconds that running requests may take to finish when the server is told to stop.",
        bounds=_AT_LEAST_0,
    )
    sse_keep_alive_interval: float = option(
        5.0,
        "Seconds of silence after which a stream gets an event that says how far its prompt has "
        "come: clients and proxies give up silent streams. 0 sends none.",
        bounds=_AT_LEAST_0,
    )
    enable_log_requests: bool = option(False, "Log each request's parameters (not its text).")
    enable_log_outputs: bool = option(False, "Log the text of replies, too; it may be private.")
    max_log_len: int | None = option(
        None,
        "Most characters of a logged text. Given, --enable-log-requests shows prompts, too; they "
        "may be private.",
        bounds=_AT_LEAST_0,
    )
    disable_log_stats: bool = option(False, "No throughput line every ten seconds.")
    disable_uvicorn_access_log: bool = option(False, "No line per HTTP request.")
    log_format: str = option("text", "Form of log lines.", choices=("text", "json"))
    log_level: str = option(
        "info", "Least important level that is logged.",
        choices=("debug", "info", "warning", "error"), aliases=("--uvicorn-log-level",),
    )  # fmt: skip
    webui: bool = option(True, "A chat page at `/`.", aliases=("--ui",))
    path: str | None = option(None, "Folder of files to serve at `/` in place of the chat page.")
    mcp_config: str | None = option(
        None,
        "File of MCP servers for the chat page and /tools, or its text, as other programs have it: "
        '{"mcpServers": {NAME: {"command": ..., "args": [...]}}} or {"url": ...}. Its programs '
        "run as this user.",
        aliases=("--mcp-servers-config", "--mcp-servers-json"),
    )
    tools: str = option(
        "",
        "Built-in tools for the chat page and /tools: `all`, or names between commas of "
        f"{', '.join(TOOLS)}. They read and change files and run commands as this user, for "
        "whoever may use the API.",
    )
    models_dir: str | None = option(
        None, "Folder of further models: each GGUF file and each folder in it, by its name."
    )
    models_memory: int | None = option(
        None,
        "Memory that all loaded models together may be planned to take, such as 20G; by default "
        "what the machine has.",
        parse=parse_size, bounds=(1, math.inf),
    )  # fmt: skip
    any_model_name: bool = option(
        False, "Requests that name no model of this server get the first one, instead of a 404."
    )
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


def asks_for_key(config: ServerConfig) -> bool:
    """Whether the API is closed to those without a key. Raises as `configured_keys`."""
    return config.api_key_file is not None or bool(configured_keys(config))


def configured_keys(config: ServerConfig) -> tuple[str, ...]:
    """Keys of the flag, else of the environment; none leaves the API open. ConfigError for one
    that no client could send."""
    if config.api_key:
        return config.api_key
    found = {name: env.get(name) for name in ("PAGODA_API_KEY", "VLLM_API_KEY")}
    for name, key in found.items():
        if key is not None:
            check_key(key, name)
    return tuple(key for key in found.values() if key is not None)
