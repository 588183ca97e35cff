"""Names of models as Ollama's clients write them."""

from pagoda.base.errors import ModelNotFoundError
from pagoda.server.context import Context
from pagoda.server.errors import ApiError

_LATEST = ":latest"


def known_name(context: Context, name: str) -> str:
    """The name under which the server has the model: `:latest` may stand behind it. ApiError 404
    if there is none, in words that clients look for, and 503 while the server starts."""
    entries = context.entries()
    for known in dict.fromkeys((name, name.removesuffix(_LATEST))):
        try:
            context.find(known)
        except ModelNotFoundError:
            continue
        return known
    names = ", ".join(n for entry in entries for n in context.names(entry))
    raise ApiError(404, f"model {name!r} not found; this server has {names}", param="model")
