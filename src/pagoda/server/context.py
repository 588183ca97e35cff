"""What the routes share: the app's state, the model of a request, its id."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection, Request

from pagoda.base.errors import (
    CapacityError,
    EngineDeadError,
    ModelNotFoundError,
    PagodaError,
    RequestError,
)
from pagoda.config.mcp import read_mcp_config
from pagoda.config.server import ServerConfig, tool_names
from pagoda.core.messages import EngineProgress
from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model import ServedModel
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.planned import Advice
from pagoda.server.errors import ApiError, unavailable
from pagoda.server.filetools.builtin import Builtin
from pagoda.server.keys.account import admitted, asking, may_manage
from pagoda.server.keys.keyring import Keyring
from pagoda.server.keys.usage import KeyCollector
from pagoda.server.library.fetches import Fetches
from pagoda.server.library.plans import Plans
from pagoda.server.mcp.addresses import reach_of
from pagoda.server.metrics import Metrics
from pagoda.server.replies.generation import Generation
from pagoda.server.toolhub import ToolHub

LEASES = "pagoda.leases"
"""Where a request's scope has the models that it keeps loaded."""
_SAFE_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


@dataclass
class Context:
    fleet: Fleet
    """Empty until the server is ready."""
    config: ServerConfig
    phase: Callable[[], str] = lambda: "launch"
    """The phase of the first engine's start; asked while the fleet is empty."""
    metrics: Metrics = field(init=False)
    generations: set[Generation] = field(default_factory=set)
    """Those whose replies are being written."""
    background: set[asyncio.Task[None]] = field(default_factory=set)
    """What goes on behind requests that were answered."""
    fetches: Fetches = field(default_factory=Fetches)
    advice: InitVar[Advice | None] = None
    plans: Plans = field(init=False)
    keyring: Keyring | None = field(init=False, default=None)
    mcp: ToolHub = field(init=False)
    starting: EngineProgress | None = None
    """How far the first engine's start is."""
    began: float = field(default_factory=time.monotonic)
    start_time: float = field(default_factory=time.time)
    """The same as a date: seconds since 1970."""

    def __post_init__(self, advice: Advice | None) -> None:
        self.plans = Plans(advice)
        self.mcp = ToolHub(
            read_mcp_config(self.config.mcp_config),
            reach_of(self.config),
            Builtin(tool_names(self.config.tools)),
        )
        self.metrics = Metrics(lambda: self.fleet.models())
        if self.config.api_key_file is not None:
            self.keyring = Keyring(Path(self.config.api_key_file))
            self.metrics.registry.register(KeyCollector(self.keyring.ledger))

    def entries(self) -> list[ModelEntry]:
        """All models that the request's key may use, loaded or not; 503 while the server starts."""
        if not self.fleet.entries:
            raise unavailable(f"The model is still loading (phase: {self.phase()}).")
        return [entry for entry in self.fleet.entries if self.names(entry)]

    def models(self) -> list[ModelEntry]:
        """Those of `entries` that may be asked for by a name of their own, not an adapter's."""
        return [entry for entry in self.entries() if entry.names[0] in self.names(entry)]

    def names(self, entry: ModelEntry) -> list[str]:
        """The model's names and then its adapters', as far as the request's key may use them."""
        account = asking()
        if account is None:
            return [*entry.names, *entry.adapters]
        own = entry.names if account.may_use(entry.names) else ()
        return [*own, *(name for name in entry.adapters if account.may_use((name,)))]

    def find(self, name: str | None) -> ModelEntry:
        """As Fleet.find, of those that the request's key may use."""
        if not name:
            entry = next(iter(self.models()), None)
        else:
            found = self.fleet.find(name)
            entry = found if name in self.names(found) else None
        if entry is None:
            raise ModelNotFoundError(f"The model `{name or ''}` does not exist.", "model")
        return entry

    def entry(self, name: str | None) -> ModelEntry:
        """The model by name; 404 if unknown, 503 while the server starts."""
        entries = self.entries()
        try:
            return self.find(name)
        except ModelNotFoundError as error:
            names = ", ".join(known for entry in entries for known in self.names(entry))
            advice = (
                "Ask for one of these, or start the server with --alias and the names it shall "
                "answer to, or with --any-model-name."
                if may_manage()
                else "The key may ask for these alone."
            )
            told = f"{error.message} Served here: {names or 'nothing'}. {advice}"
            raise ApiError(404, told, param="model") from None

    def asked(self, name: str | None) -> ModelEntry:
        """Likewise for a request to a model: with --any-model-name the first model answers to
        names that no other has."""
        if self.config.any_model_name and not self.fleet.has(name):
            name = None
        return self.entry(name)

    async def served(self, request: HTTPConnection, name: str | None) -> ServedModel:
        """The model by name, loaded if need be, and kept until the request is answered.

        Raises as `asked` and `admitted`, and 503 where there is no room or it cannot be loaded.
        """
        entry = self.asked(name)
        leases: ExitStack = request.scope[LEASES]
        admitted(request.scope, leases, entry.names[0])
        leases.enter_context(entry.used())
        try:
            return await self.fleet.ready(entry)
        except RequestError:
            raise
        except PagodaError as error:
            told = f"The model {entry.names[0]} is not available: {error}"
            if isinstance(error, CapacityError | EngineDeadError):
                raise unavailable(told) from error
            raise ApiError(503, told, param="model") from error  # no use in trying again

    def unload_after(self, request: Request, name: str) -> None:
        """Free a model's memory once the request is answered, unless others use it or it is
        pinned. To be said before `served`."""
        entry = self.entry(name)
        leases: ExitStack = request.scope[LEASES]
        leases.callback(lambda: self._in_background(self.fleet.unload_idle(entry)))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def loaded(self, name: str | None) -> ServedModel:
        """The model by name, to look at; 503 where it is not loaded."""
        served = self.asked(name).served
        if served is None:
            raise unavailable("The model is not loaded; a request for a reply loads it.")
        return served


def context_of(request: HTTPConnection) -> Context:
    context: Context = request.app.state.context
    return context


@dataclass
class ReplyHead:
    """The fields at the head of every reply and chunk."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))


def reply_id(request: Request, chosen: str | None) -> str:
    """The request's own id (body or X-Request-Id) where it is harmless, else a new one."""
    own = chosen or request.headers.get("x-request-id", "")
    return own if _SAFE_ID.fullmatch(own) else uuid.uuid4().hex


def reply_head(request: Request, prefix: str, chosen: str | None, model: str) -> ReplyHead:
    return ReplyHead(f"{prefix}-{reply_id(request, chosen)}", model)
