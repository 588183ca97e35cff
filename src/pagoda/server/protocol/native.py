"""llama-server's own routes: bodies and replies."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, WithJsonSchema

from pagoda.config.sampling import ABSENT
from pagoda.server.protocol.common import Items, TextBody
from pagoda.server.protocol.numbers import (
    BREAKERS_DESCRIPTION,
    SAMPLERS_DESCRIPTION,
    native_number,
    with_numbers,
)
from pagoda.server.protocol.replies import PromptProgress, Timings

_MIXED = {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 1}
_OBJECT = {
    "type": "object",
    "properties": {
        "prompt_string": {"type": "string"},
        "content": {"type": "array", "items": {"type": "object"}},
    },
    "anyOf": [{"required": ["prompt_string"]}, {"required": ["content"]}],
}
# Looked at once, by `split_pieces`: lists may have a million ids.
NativePrompt = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"}, _OBJECT, _MIXED,
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": [{"type": "string"}, _OBJECT, _MIXED]},
                },
            ]
        }
    ),
]  # fmt: skip
_BIAS = {"anyOf": [{"type": "number"}, {"const": False}]}
NativeBias = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": _BIAS},
                {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
            ]
        }
    ),
]

_NO_SLOTS = "There are no slots to choose: any request can use the whole cache."
_PART_OF = "Part of a sampler that is refused where it would do something."
_NO_SHIFT = "The context is never shifted: a reply ends where the context is full."
_CHAT_ONLY = "About the parsing of chats; this route gives the text as it is."


class NativeBody(with_numbers(TextBody, native_number)):  # type: ignore[misc]  # made of a table
    """Sampling in llama-server's words. What is not sent comes from the model's generation config,
    then from OpenAI's API, as on every route."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "multimodal_data": ([],),
        "reasoning_budget_tokens": (-1,),
        **{absent.native: absent.neutral for absent in ABSENT},
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("id_slot", "slot_id"), _NO_SLOTS),
        **dict.fromkeys(("grammar_lazy", "grammar_triggers"), _PART_OF),
        **{field: _PART_OF for absent in ABSENT for field, _ in absent.parts},
        **dict.fromkeys(("n_discard", "n_keep"), _NO_SHIFT),
        **dict.fromkeys(
            ("chat_format", "generation_prompt", "parse_tool_calls", "preserved_tokens",
             "reasoning_format"),
            _CHAT_ONLY,
        ),
        "backend_sampling": "Where tokens are chosen is the engine's affair.",
        "n_cache_reuse": "Every block with the same prefix is reused, and nothing else can be.",
        "sse_ping_interval": "The server's own setting holds.",
        "t_max_prompt_ms": "llama-server ignores it too.",
        "verbose": "--enable-log-requests logs parameters.",
    }  # fmt: skip

    stream: bool = False
    n_predict: int = Field(
        -1,
        ge=-1,
        validation_alias=AliasChoices("n_predict", "max_tokens", "max_completion_tokens"),
        description="-1 fills the context, and more than it has room for ends with it; also "
        "`max_tokens`.",
    )
    n_cmpl: int = Field(
        1, ge=1, le=128, validation_alias=AliasChoices("n_cmpl", "n"),
        description="Completions per prompt; also `n`.",
    )  # fmt: skip
    repeat_last_n: int = Field(
        -1, ge=-1, description="0 turns penalties off; else they look at everything, so with a "
        "penalty only -1 is honoured.",
    )  # fmt: skip
    samplers: str | Items[str] | None = Field(None, description=SAMPLERS_DESCRIPTION)
    dry_sequence_breakers: Items[str] | None = Field(None, description=BREAKERS_DESCRIPTION)
    grammar: str = Field("", description="GBNF, or Lark.")
    json_schema: dict[str, Any] | bool | None = Field(
        None, description="What the reply is JSON of; without a grammar."
    )
    seed: int | None = Field(None, description="-1 and 4294967295 draw one.")
    stop: str | Items[str] = []
    ignore_eos: bool = False
    logit_bias: NativeBias = Field(
        [], description="`[[token or text, bias], ...]` or an object; false bans."
    )
    n_probs: int = Field(0, ge=0, description="Log-probabilities of so many tokens.")
    post_sampling_probs: bool = Field(
        False, description="Probabilities in their place, as the samplers left them for the draw."
    )
    cache_prompt: bool = Field(True, description="False reuses nothing that is in the cache.")
    return_tokens: bool = False
    return_progress: bool = Field(
        False, description="One `prompt_progress`, with the first token of a stream."
    )
    timings_per_token: bool = False
    t_max_predict_ms: int = Field(
        -1, ge=-1, description="So long after its first token the reply ends with its next line."
    )
    n_indent: int = Field(
        0, ge=0, description="The reply ends before a line that begins with less white space."
    )
    response_fields: Items[str] = Field(
        [], description="Only these of the last object, `generation_settings/seed` for inner ones."
    )

    def default_length(self, of_model: int | None) -> int | None:
        return of_model if self.n_predict == -1 else self.n_predict


class NativeCompletionRequest(NativeBody):
    prompt: NativePrompt


class ExtraFile(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: str
    filename: str = "tmp"


class InfillRequest(NativeBody):
    input_prefix: str
    input_suffix: str
    input_extra: Items[ExtraFile] = Field([], description="Other files, before the prefix.")
    prompt: str = Field("", description="The beginning of what is to be filled in.")


class TokenProb(msgspec.Struct, kw_only=True):
    """With `post_sampling_probs` a probability in place of its logarithm."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class TokenProbs(TokenProb, kw_only=True):
    top_logprobs: list[TokenProb] | UnsetType = UNSET
    top_probs: list[TokenProb] | UnsetType = UNSET


class NativeChunk(msgspec.Struct, kw_only=True):
    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    completion_probabilities: list[TokenProbs] | UnsetType = UNSET


StopType = Literal["none", "eos", "limit", "word"]


class NativeCompletion(msgspec.Struct, kw_only=True):
    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[TokenProbs] | UnsetType = UNSET


class PromptText(msgspec.Struct):
    prompt: str


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
