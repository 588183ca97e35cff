"""The models of this machine: those that can be asked for, and those that were fetched before."""

import asyncio

from pagoda.base.errors import ModelNotFoundError, SourceError
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.context import Context
from pagoda.server.errors import ApiError
from pagoda.server.library.wanted import check_open, why_closed
from pagoda.server.modelfacts import ShownModel, shown_model
from pagoda.server.protocol.models import KeptModel, Library, LibraryModel
from pagoda.weights.hub.models import CachedModel, list_models, remove
from pagoda.weights.hub.wheel import ALIASES
from pagoda.weights.source import ModelRef, parse_ref


async def library(context: Context) -> Library:
    """What lies on this machine beside the server's own models is told to those alone who may
    change it."""
    entries, closed = context.models(), why_closed(context.config)
    models = [_listed(await shown_model(entry, entry.names[0])) for entry in entries]
    kept: list[CachedModel] = []
    if not closed and entries[0].config.model.download_dir is None:
        kept = await asyncio.to_thread(list_models)
    served = {_place(entry): entry.names[0] for entry in entries}
    return Library(
        models=models,
        kept=[_kept(model, served) for model in kept],
        known=[] if closed else sorted({*ALIASES, *context.plans.known()}),
        closed=closed or None,
    )


async def remove_model(context: Context, name: str) -> int:
    """Delete a model from the cache: one that is served under that name since it was fetched, or
    one that the cache has. The bytes freed.

    Raises ApiError 403 where nobody may, 409 while it is in use or where a flag names it, 404 where
    the cache has none.
    """
    check_open(context.config)
    context.entries()
    try:
        ref = context.find(name).config.model.model
    except ModelNotFoundError:
        ref = name
    place = _parsed(ref)
    if place is None or place.kind == "local":
        raise ApiError(404, f"The cache has no {name[:200]!r}.", param="model")
    if context.fetches.under_way(ref):
        raise ApiError(409, f"{name} is being fetched; cancel that first.", param="model")
    using = [entry for entry in context.fleet.entries if _place(entry) == (place.kind, place.name)]
    for entry in using:
        _check_removable(entry)
    for entry in using:  # nobody begins to load it meanwhile
        context.fleet.drop(entry)
    whole = ref.removesuffix(f":{place.selector}") if place.selector else ref
    try:
        return await asyncio.to_thread(remove, whole)
    except SourceError as error:
        raise ApiError(404, str(error), param="model") from error


def _check_removable(entry: ModelEntry) -> None:
    name = entry.names[0]
    if not entry.added:
        raise ApiError(
            409,
            f"The server was started with {name}; start it without, then remove the model.",
            param="model",
        )
    if entry.held is not None or entry.state == "loading":
        raise ApiError(409, f"{name} is loaded; unload it first.", param="model")


def _listed(shown: ShownModel) -> LibraryModel:
    entry, facts = shown.entry, shown.facts
    return LibraryModel(
        name=shown.name,
        status=entry.state,
        chats=shown.writes,
        bytes=facts.nbytes,
        parameters=facts.parameters,
        quantization=facts.quantization,
        memory=entry.held_bytes,
        context=shown.context_length,
        removable=entry.added,
        pinned=entry.pinned,
        error=entry.cause,
    )


def _kept(model: CachedModel, served: dict[tuple[str, str], str]) -> KeptModel:
    place = _parsed(model.name)
    name = None if place is None else served.get((place.kind, place.name))
    return KeptModel(model.name, model.nbytes, name)


def _place(entry: ModelEntry) -> tuple[str, str]:
    """Where its files lie: kind and name of its reference, whatever file of it is chosen."""
    place = _parsed(entry.config.model.model)
    return ("", "") if place is None else (place.kind, place.name)


def _parsed(ref: str) -> ModelRef | None:
    try:
        return parse_ref(ref)
    except SourceError:
        return None
