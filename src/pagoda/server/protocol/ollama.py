"""Ollama's API: bodies, replies and the lines that streams are made of."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pagoda.config.sampling import ABSENT
from pagoda.server.protocol.common import Body, Items
from pagoda.server.protocol.numbers import native_number, with_numbers
from pagoda.server.protocol.replies import ContentLogprob

_LOADING = "How a model is loaded is said by flags of `pagoda serve`."
_PART_OF = "Part of a sampler that is refused where it would do something."
_NO_SHIFT = "The context is never shifted: a reply ends where the context is full."
KeepAlive = float | str
Think = bool | Literal["none", "low", "medium", "high", "max", ""]


class OllamaOptions(with_numbers(Body, native_number)):  # type: ignore[misc]  # made of a table
    """`options`. What is not sent comes from the model's generation config, then from OpenAI's
    API, as on every route."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **{absent.native: absent.neutral for absent in ABSENT},
        "tfs_z": (1,),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **{field: _PART_OF for absent in ABSENT for field, _ in absent.parts},
        **dict.fromkeys(
            ("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch",
             "num_gpu", "num_thread", "numa", "use_mlock", "use_mmap", "vocab_only"),
            _LOADING,
        ),
        "num_keep": _NO_SHIFT,
        "penalize_newline": "A line's end is a token like any other.",
    }  # fmt: skip

    num_ctx: int | None = Field(None, ge=0, description="At most the context that is served.")
    num_predict: int = Field(-1, ge=-2, description="0 and below fill the context.")
    repeat_last_n: int = Field(-1, ge=-1)
    seed: int | None = Field(None, description="-1 draws one.")
    stop: str | Items[str] = []


class OllamaBody(Body):
    """What all requests say that need a model."""

    model: str = Field(min_length=1, validation_alias=AliasChoices("model", "name"))
    options: dict[str, Any] = Field({}, description="docs/ollama.md lists them.")
    keep_alive: KeepAlive | None = Field(
        None, description="0 unloads the model once nobody uses it; --idle-unload says the rest."
    )


class OllamaTextBody(OllamaBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        # A template from a request is code; only the operator chooses it.
        "template": ("",),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        "shift": _NO_SHIFT,
        "truncate": "A prompt is never cut: one that is too long is a 400 that says by how much.",
    }

    stream: bool = Field(True, description="False: one reply instead of a line for each piece.")
    format: str | dict[str, Any] = Field("", description="`json`, or a JSON schema.")
    think: Think | None = Field(None, description="Whether the model thinks, or how much.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


class OllamaFunction(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1)
    content: str | None = ""
    thinking: str | None = None
    images: Items[str] | None = Field(None, description="In base64.")
    tool_calls: Items[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaTextBody):
    messages: Items[OllamaMessage] = Field([], description="Empty: the model is loaded.")
    tools: Items[dict[str, Any]] = []


class OllamaGenerateRequest(OllamaTextBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **OllamaTextBody.UNSUPPORTED,
        **dict.fromkeys(("height", "steps", "width"), (0,)),
    }

    prompt: str = Field("", description="Empty: the model is loaded.")
    suffix: str = Field("", description="What follows the reply, for a model that fills in.")
    system: str = ""
    images: Items[str] = Field([], description="In base64.")
    raw: bool = Field(False, description="The prompt as it is, without the chat template.")
    context: Items[int] = Field([], description="As a reply gave it: the conversation goes on.")


class OllamaEmbedRequest(OllamaBody):
    input: str | Items[str] = Field(description="One text, or several.")
    truncate: bool = Field(True, description="Cut what is too long, at its end.")
    dimensions: int | None = Field(None, ge=1)


class OllamaEmbeddingsRequest(OllamaBody):
    prompt: str


class OllamaShowRequest(OllamaBody):
    IGNORED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("system", "template"), "What is shown is what the model has."),
        "verbose": "The lists of the tokenizer are never shown.",
    }


class OllamaPullRequest(Body):
    IGNORED: ClassVar[Mapping[str, str]] = {
        "insecure": "Where models come from is the server's affair.",
        **dict.fromkeys(("password", "username"), "HF_TOKEN of the server is the key."),
    }

    model: str = Field(min_length=1, validation_alias=AliasChoices("model", "name"))
    stream: bool = True


class OllamaFunctionCall(msgspec.Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(msgspec.Struct):
    id: str
    function: OllamaFunctionCall


class OllamaReplyMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, kw_only=True):
    """What lines and whole replies have alike. Durations are nanoseconds."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET


class OllamaChat(OllamaLine, kw_only=True):
    message: OllamaReplyMessage


class OllamaGeneration(OllamaLine, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct):
    embedding: list[float]


class OllamaDetails(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(msgspec.Struct):
    models: list[OllamaModel]


class OllamaRunningModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    """Planned memory, KV pool and all."""
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaRunningModels(msgspec.Struct):
    models: list[OllamaRunningModel]


class OllamaShown(msgspec.Struct, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct):
    version: str


class OllamaProgress(msgspec.Struct, kw_only=True):
    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET
