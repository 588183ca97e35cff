"""Tokens in, tokens out: vLLM's /inference/v1/generate, and what the render routes answer."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from pagoda.server.protocol.common import (
    UNSUPPORTED_GENERATION,
    UNSUPPORTED_STRUCTURE,
    Body,
    Items,
    SamplingFields,
    StreamOptions,
    TextBody,
)
from pagoda.server.protocol.replies import PromptLogprobs, Usage


class SamplingParamsBody(SamplingFields):
    """The object `sampling_params`."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **UNSUPPORTED_GENERATION,
        **UNSUPPORTED_STRUCTURE,
        "extra_args": ({},),
        "prompt_logprob_token_ids": ([],),
        "skip_reading_prefix_cache": (False,),
        "structured_outputs": (),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        "flat_logprobs": "A form of vLLM's Python objects.",
        "output_kind": "`stream` tells which.",
    }

    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=-1)
    detokenize: bool = True


class GenerateRequest(TextBody):
    """What a render route answers can be sent as it is."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "content_parts": ([],),
        "ec_transfer_params": (),
        "features": (),
        "kv_transfer_params": (),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        "reasoning_ended": "Output is not constrained here, before or after thought.",
        "reasoning_parser_kwargs": "Output is not parsed here.",
        "token_offsets": "The text of the prompt is not needed.",
    }

    token_ids: Items[int] = Field(min_length=1)
    sampling_params: dict[str, Any] = Field({}, description="As vLLM's SamplingParams.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    output_mode: Literal["tokens", "text"] = Field(
        "tokens", description="`text` adds the text of each choice and of its logprobs."
    )
    return_token_ids: bool = Field(False, description="The prompt's, in the first chunk or reply.")


class AbortRequest(Body):
    request_ids: Items[str] = Field(description="As in their replies.")


class TokenIdLogprob(msgspec.Struct, kw_only=True):
    token_id: int
    logprob: float
    rank: int


class TokenIdLogprobs(TokenIdLogprob, kw_only=True):
    top_logprobs: list[TokenIdLogprob]


class IdLogprobs(msgspec.Struct):
    content: list[TokenIdLogprobs]


class GeneratedChoice(msgspec.Struct, kw_only=True):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int]
    text: str | UnsetType = UNSET
    logprobs: Any = None
    """IdLogprobs, or ChatLogprobs in the mode `text`."""


class Generated(msgspec.Struct, kw_only=True):
    request_id: str
    output_mode: str
    model: str
    created: int
    choices: list[GeneratedChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class GeneratedChunk(msgspec.Struct, kw_only=True):
    request_id: str
    output_mode: str
    choices: list[GeneratedChoice]
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Rendered(msgspec.Struct, kw_only=True):
    """A request as the engine would get it; a body of /inference/v1/generate."""

    request_id: str
    model: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool
    stream_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0


class Aborted(msgspec.Struct):
    aborted: list[str]
    """Those of the ids that were running."""
