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
