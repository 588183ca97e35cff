"""Routes about models: the body of those that load and unload, and LM Studio's lists."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from pagoda.server.protocol.common import Body


class ModelRequest(Body):
    model: str = Field(min_length=1)


class StudioQuantization(msgspec.Struct):
    name: str | None
    bits_per_weight: float | None


class StudioLoad(msgspec.Struct):
    context_length: int
    parallel: int


class StudioInstance(msgspec.Struct):
    id: str
    config: StudioLoad


class StudioAbilities(msgspec.Struct):
    vision: bool
    trained_for_tool_use: bool


class StudioModel(msgspec.Struct, kw_only=True):
    type: str
    """`llm` or `embedding`."""
    publisher: str
    key: str
    display_name: str
    architecture: str
    quantization: StudioQuantization
    size_bytes: int
    params_string: str | None
    loaded_instances: list[StudioInstance]
    """One while the model is loaded."""
    max_context_length: int
    """What a request can have."""
    format: str | None
    """`gguf`, or None."""
    capabilities: StudioAbilities | UnsetType = UNSET


class StudioModels(msgspec.Struct):
    models: list[StudioModel]


class StudioCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    type: str
    """`llm`, `vlm` or `embeddings`."""
    publisher: str
    arch: str
    compatibility_type: str
    quantization: str
    state: Literal["loaded", "not-loaded"]
    max_context_length: int
    """What a request can have."""
    loaded_context_length: int | UnsetType = UNSET
    capabilities: list[str]


class StudioCards(msgspec.Struct):
    data: list[StudioCard]
    object: Literal["list"] = "list"


class LibraryModel(msgspec.Struct, kw_only=True):
    """One that can be asked for."""

    name: str
    status: str
    """`unloaded`, `loading`, `loaded`, `sleeping` or `failed`."""
    chats: bool
    """False: it makes vectors or scores."""
    bytes: int
    """The size of its files; 0 where they are not on this machine."""
    parameters: str
    quantization: str
    memory: int
    """Bytes that it holds now: resident ones of a CPU, where a KV pool grows with its use, or those
    of a GPU; 0 while it is not loaded."""
    context: int
    """Tokens that a request can have; 0 where it is not known."""
    removable: bool
    """It was fetched while the server runs."""
    pinned: bool
    error: str | None


class KeptModel(msgspec.Struct):
    """One in the cache."""

    name: str
    bytes: int
    served: str | None
    """The name that it can be asked for under."""


class Library(msgspec.Struct):
    models: list[LibraryModel]
    kept: list[KeptModel]
    known: list[str]
    """Names of models that can be fetched; any other of a hub can be, too."""
    closed: str | None
    """Why this server fetches, plans and removes no further models for anyone."""


class Removed(msgspec.Struct):
    freed: int
    """Bytes of disk."""


class LoadProgress(msgspec.Struct):
    phase: str
    done: int
    total: int
    """What `done` grows to; 0 where nothing is counted."""
    seconds: float
    """Since the load began."""
