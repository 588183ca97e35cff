"""What the routes share: the app's state, the model of a request, its id."""

import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.requests import Request

from pagoda.base.errors import ModelNotFoundError
from pagoda.config.server import ServerConfig
from pagoda.engine.directory import ModelDirectory, ServedModel
from pagoda.server.errors import ApiError, unavailable
from pagoda.server.generation import Generation
from pagoda.server.metrics import Metrics

_SAFE_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


@dataclass
class Context:
    directory: ModelDirectory
    """Replaced when models come or go."""
    config: ServerConfig
    metrics: Metrics = field(init=False)
    generations: set[Generation] = field(default_factory=set)
    """Those whose replies are being written."""

    def __post_init__(self) -> None:
        self.metrics = Metrics(lambda: self.directory.models())

    def models(self) -> list[ServedModel]:
        """All models; 503 while nothing is loaded yet."""
        models = self.directory.models()
        if not models:
            raise unavailable("The model is still loading.")
        return models

    def served(self, name: str | None) -> ServedModel:
        """The model by name; 404 if unknown, 503 while nothing is loaded yet."""
        models = self.models()
        try:
            return self.directory.get(name)
        except ModelNotFoundError as error:
            names = ", ".join(n for served in models for n in served.names)
            raise ApiError(404, f"{error.message} Valid names: {names}.", param="model") from None


def context_of(request: Request) -> Context:
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
