"""Everything the API answers, as msgspec structs: encoding one costs about a microsecond.

Null fields are written, as vLLM does; UNSET ones are left out.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pagoda.server.protocol.codex import CodexModel


class CachedTokens(msgspec.Struct):
    """Where the cached tokens of a prompt were."""

    pool: int
    """In the KV pool, from requests since the engine's start."""
    host: int
    """In the host's memory (`--kv-offloading-size`)."""
    disk: int
    """Brought back from disk at the start (`--kv-disk`), in the pool since."""


class PrefixReport(msgspec.Struct, kw_only=True):
    """Where a prompt parted from what was cached."""

    reason: str
    """`all` whole blocks were cached; the next one was `new` or `evicted`, or there was `no_state`
    of recurrent layers behind it; `off`: nothing was looked for."""
    at_token: int | None = None
    """The first token that had to be computed."""
    text: str | None = None
    """The prompt's own text of the block that begins there."""
    cached: CachedTokens | None = None


class PromptTokensDetails(msgspec.Struct, omit_defaults=True):
    cached_tokens: int
    prefix_report: PrefixReport | None = None


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Guessed tokens that came true, where the request had a `prediction`,"""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """and those that did not, which are none of the reply's."""


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timings(msgspec.Struct, kw_only=True):
    """llama-server's. The first token belongs to the prompt, so rates count the steps behind it."""

    cache_n: int
    prompt_n: int
    """Prompt tokens computed, those in the cache left out."""
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    """Guessed tokens that were verified, where there were any."""
    draft_n_accepted: int | UnsetType = UNSET
    """Those of them that came true."""


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ContentLogprob]


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int] = msgspec.field(default_factory=list)
    token_logprobs: list[float | None] = msgspec.field(default_factory=list)
    tokens: list[str] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = msgspec.field(default_factory=list)


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    reasoning: str | None = None
    # vLLM dropped this name, many clients still read it; there whenever reasoning is.
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: Any = None


class Verbose(msgspec.Struct):
    """What llama-server tells of a reply that was asked for with `verbose`."""

    prompt: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    timings: Timings
    """Timings of the first choice."""
    verbose: Verbose | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class PromptProgress(msgspec.Struct, kw_only=True):
    """Tokens of a prompt: all, those found in the cache, and those that are there by now."""

    total: int
    cache: int
    processed: int
    time_ms: float


class ToolCallDelta(msgspec.Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    verbose: Verbose | UnsetType = msgspec.field(default=UNSET, name="__verbose")
    prompt_progress: PromptProgress | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    routed_experts: Any = None


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    kv_transfer_params: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    timings: Timings
    """Timings of the first choice."""


class CompletionChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class ModelPermission(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelStatus(msgspec.Struct, omit_defaults=True):
    value: str
    """`unloaded`, `loading`, `loaded`, `sleeping` or `failed`."""
    pinned: bool = False
    bytes: int | None = None
    """Memory that it holds now, while it is loaded: a KV pool on a CPU grows with its use."""
    error: str | None = None


class Success(msgspec.Struct):
    success: bool = True


class ModelArchitecture(msgspec.Struct):
    input_modalities: list[str]
    """`text`, and `image` and `video` for a model that sees."""
    output_modalities: list[str]


class ModelCard(msgspec.Struct, kw_only=True):
    """OpenAI's fields, Anthropic's (`type`, `display_name`, `created_at`) and vLLM's."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str
    created: int
    created_at: str
    """ISO 8601."""
    owned_by: str = "pagoda"
    root: str
    parent: str | None = None
    max_model_len: int | None
    architecture: ModelArchitecture | None = None
    """None while the model's files are not on this machine."""
    permission: list[ModelPermission]
    status: ModelStatus


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[CodexModel]
    """The same for Codex, which reads nothing else."""
    has_more: bool = False
    """As in Anthropic's pages, of which there is one."""
    first_id: str | None
    last_id: str | None


class Piece(msgspec.Struct):
    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int | Piece]
    token_strs: list[str] | None = None


class Text(msgspec.Struct, kw_only=True):
    prompt: str
    content: str
