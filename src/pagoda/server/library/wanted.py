"""Which models may be fetched, planned and removed over HTTP, and by whom."""

from collections.abc import AsyncIterator
from dataclasses import replace

from pagoda.base.errors import ModelNotFoundError, SourceError
from pagoda.config.server import ServerConfig, asks_for_key
from pagoda.engine.served.entries import model_entry
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.context import Context
from pagoda.server.errors import ApiError
from pagoda.server.http.listen import is_loopback_host
from pagoda.server.keys.account import may_manage
from pagoda.server.library.fetches import FetchedPart
from pagoda.weights.source import parse_ref

_HUBS = ("hf.co/", "huggingface.co/")


def why_closed(config: ServerConfig) -> str:
    """Why nobody may have this server fetch, plan or remove models that it was not started with;
    empty where who asks may."""
    if not may_manage():
        return "This key may ask models alone; further models and tools take one with `admin`."
    alone = config.uds is not None or is_loopback_host(config.host)
    if alone or asks_for_key(config):
        return ""
    return (
        "This server is open to the network and has no key, so nobody may have it fetch further "
        "models or call tools; start it with --api-key, or with the model."
    )


def check_open(config: ServerConfig) -> None:
    """ApiError 403 where `why_closed`."""
    if why := why_closed(config):
        raise ApiError(403, why)


def wanted(context: Context, name: str) -> ModelEntry:
    """One of the server's models, or one that is to become another; ApiError for what is none."""
    entries = context.entries()
    try:
        return context.find(name)
    except ModelNotFoundError:
        pass
    check_open(context.config)
    first = entries[0].config
    # Another model has revisions of its own.
    like = replace(first, model=replace(first.model, revision=None))
    entry = model_entry(like, (name,), _reference(name))
    entry.added = True
    return entry


async def fetch(context: Context, entry: ModelEntry) -> AsyncIterator[FetchedPart]:
    """Each part that is further than it was; then the model can be asked for. Raises ApiError 502
    where the hub does not give it."""
    try:
        async for part in context.fetches.follow(entry.config.model):
            yield part
    except SourceError as error:
        raise ApiError(502, str(error), param="model") from error
    if entry not in context.fleet.entries and not context.fleet.has(entry.names[0]):
        context.fleet.add(entry)


def _reference(name: str) -> str:
    """What stands for the model on a hub. Nothing is told of the server's files: a path is no
    model."""
    ref = name
    for hub in _HUBS:
        if name.startswith(hub):
            ref = "hf:" + name.removeprefix(hub)
    try:
        if not ref.startswith(("/", ".", "~")) and parse_ref(ref).kind != "local":
            return ref
    except SourceError:
        pass
    raise ApiError(
        404,
        f"{name[:200]!r} is not the name of a model on a hub; write org/name, hf:org/name:QUANT or "
        "modelscope:org/name.",
        param="model",
    )
