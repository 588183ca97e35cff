"""The server that a program is to work with: one that runs, or one that is started for it."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pagoda.base import env, runfile
from pagoda.base.errors import ConfigError, PagodaError
from pagoda.base.words import say
from pagoda.bench.sse import ServerError, error_message, is_this_machine, transport_message

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_ASK_EVERY = 0.3
_LAST_LINES = 6
_popen = subprocess.Popen


@dataclass(frozen=True)
class Loading:
    """A server that has no model yet."""

    said: str


@dataclass(frozen=True)
class Models:
    """What a server answers to `/v1/models`."""

    root: str
    cards: tuple[dict[str, Any], ...]
    catalog: tuple[dict[str, Any], ...]

    def fitting(self, model: str | None) -> list[dict[str, Any]]:
        return [card for card in self.cards if model in (None, card["id"], card.get("root"))]

    def choose(self, model: str | None, prefers: str = "") -> dict[str, Any]:
        """The card of `model` (None: the first), under the name of it that contains `prefers`
        where it has one. Raises ConfigError for a model that is not served."""
        fitting = self.fitting(model)
        if not fitting:
            names = ", ".join(card["id"] for card in self.cards) or "none"
            raise ConfigError(
                f"The server at {self.root} has no model {model!r}; its models: {names}. Take one "
                "of them, or start another server with --port N."
            )
        first = fitting[0]
        root = first.get("root") or first["id"]
        same = [card for card in self.cards if (card.get("root") or card["id"]) == root]
        return next((card for card in same if prefers and prefers in card["id"]), first)


def root_of(url: str) -> str:
    """A server's address without /v1, with the scheme that people leave out.

    Raises ConfigError for what is no address.
    """
    url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    is_this_machine(url)
    return url


def ask(root: str, api_key: str | None) -> Models | Loading | None:
    """What runs at `root`; None where nothing listens.

    Raises ServerError for a server that refuses the key or is of another kind.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(
            f"{root}/v1/models",
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=not is_this_machine(root),
        )
    except httpx.ConnectError:
        return None
    except httpx.HTTPError as error:
        raise ServerError(transport_message(error, root)) from error
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return Loading(error_message(response).partition(": ")[2])
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise ServerError(error_message(response), 401)
    try:
        body = response.raise_for_status().json()
        cards = tuple(card for card in body["data"] if isinstance(card["id"], str))
        return Models(root, cards, tuple(body.get("models") or ()))
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(
            f"{root} answers, but not as an OpenAI-compatible server; --port N or --base-url says "
            "where one is."
        ) from error


def find_port(default: int, model: str | None, api_key: str | None) -> int:
    """The port of a running server of this user's that has `model` (None: any), or that loads on
    the port `default`; that port, too, where there is none."""
    ports = [server.port for server in runfile.running()]
    for port in sorted(ports, key=lambda port: port != default):
        try:
            found = ask(root_of(f"127.0.0.1:{port}"), api_key)
        except ServerError:  # it wants another key, or speaks TLS
            continue
        if isinstance(found, Loading) and port == default:
            return port
        if isinstance(found, Models) and found.fitting(model):
            return port
    return default


class StartedServer:
    """A `pagoda serve` that goes on when this process has ended."""

    def __init__(self, model: str, port: int, api_key: str | None):
        self.port = port
        self.log = log_file(port)
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        changes = {"PAGODA_API_KEY": api_key} if api_key else {}
        with self.log.open("wb") as log:
            self._process = _popen(
                [sys.executable, "-m", "pagoda", *serve_words(model, port)],
                env=env.child_environment(**changes), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Raises PagodaError, with what it said last, where it has ended."""
        if self._process.poll() is None:
            return
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
        raise PagodaError(f"The server did not start; its log ({self.log}) ends with:\n{last}")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def log_file(port: int) -> Path:
    return env.cache_dir() / "logs" / f"serve-{port}.log"


def serve_words(model: str, port: int) -> list[str]:
    """As `pagoda` takes them. The context is the longest that fits, since agents need it."""
    name = short_name(model)
    return [
        "serve", model, "--port", str(port), "--max-model-len", "auto",
        "--served-model-name", name, f"claude-{name}",
    ]  # fmt: skip


def short_name(model: str) -> str:
    """A model's name without folders and endings: `Qwen3-0.6B-GGUF-Q8_0`."""
    last = model.rstrip("/").rpartition("/")[2] or model
    return last.removesuffix(".gguf").replace(":", "-")


def wait_ready(
    root: str, api_key: str | None, started: StartedServer | None, show: Callable[[str], None]
) -> Models | None:
    """Wait until the server at `root` has its model, and `show` what it does meanwhile; None where
    nothing listens and none was `started`. Raises PagodaError where that fails."""
    while True:
        try:
            found = ask(root, api_key)
        except ServerError:
            if started is None:
                raise
            found = None  # it was about to end: `check` knows why
        if isinstance(found, Models):
            return found
        if started is not None:
            started.check()
        elif found is None:
            return None
        show(found.said if found else say("The server starts."))
        time.sleep(_ASK_EVERY)
