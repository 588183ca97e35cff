"""Replies that tell the state of the server and of its models."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pagoda.server.protocol.models import LoadProgress


class Health(msgspec.Struct):
    status: str
    cause: str | None = None
    """Why the engine is not ready, once it has died."""
    progress: LoadProgress | UnsetType = UNSET
    """How far a model's engine is that starts, and what it waits for."""


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int


class CacheReset(msgspec.Struct):
    success: bool


class SleepState(msgspec.Struct):
    is_sleeping: bool


class ModelInfo(msgspec.Struct, kw_only=True):
    names: list[str]
    root: str
    state: str
    max_model_len: int
    generates: bool
    engine: dict[str, Any] | None
    """What the engine said when it was ready: device, blocks, tokens, the ledger of its start."""


class ServerInfo(msgspec.Struct, kw_only=True):
    version: str
    models: list[ModelInfo]


class TokenizerInfo(msgspec.Struct, kw_only=True):
    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    special_tokens: dict[str, str]
    eos_token_ids: list[int]
    chat_template: str | None


class GenerationDefaults(msgspec.Struct):
    n_ctx: int
    params: dict[str, Any]


class Modalities(msgspec.Struct):
    vision: bool = False
    audio: bool = False
    video: bool = False


class Props(msgspec.Struct, kw_only=True):
    """What llama-server's /props answers."""

    default_generation_settings: GenerationDefaults
    total_slots: int
    model_alias: str
    model_path: str
    """As the model was asked for."""
    modalities: Modalities = msgspec.field(default_factory=Modalities)
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    is_sleeping: bool = False


class NextToken(msgspec.Struct):
    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct, kw_only=True):
    """llama-server's. Requests have no fixed place here: the running ones fill the first slots."""

    id: int
    n_ctx: int
    speculative: bool
    """Tokens are guessed, where that makes replies faster."""
    is_processing: bool
    id_task: int | UnsetType = UNSET
    """Counts requests since the server started."""
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    """Those that had to be computed; 0 until the first token comes, as the next two."""
    n_prompt_tokens_cache: int | UnsetType = UNSET
    n_past: int | UnsetType = UNSET
    """Tokens of prompt and reply whose keys and values are there."""
    draft_n: int | UnsetType = UNSET
    """Guessed tokens that were verified, and those of them that came true; as in `timings`."""
    draft_n_accepted: int | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET
