"""Body of /v1/responses."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.protocol.common import Items
from pagoda.server.protocol.dialects import DialectBody

LOGPROBS = "message.output_text.logprobs"
SEALED_THOUGHT = "reasoning.encrypted_content"

Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of tools and inputs that are refused, so there is nothing to include.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class TextConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    summary: str | None = Field(default=None, description="Thought is shown whole instead.")


class CountInputRequest(DialectBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **DialectBody.UNSUPPORTED,
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "prompt": (),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **DialectBody.IGNORED,
        **dict.fromkeys(
            ("background_options", "client_metadata", "personality", "prompt_cache_options"),
            "For OpenAI's own platform; there is nothing to honour on one machine.",
        ),
    }

    input: str | Items[dict[str, Any]] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Items[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    reasoning: Reasoning = Reasoning()
    truncation: Literal["auto", "disabled"] = Field(
        "disabled", description="`auto` leaves out the oldest turns where all do not fit."
    )


class ResponsesRequest(CountInputRequest):
    include: Items[Include] = []
    background: bool = False
    store: bool = True
    stream_options: dict[str, Any] | None = None  # type: ignore[assignment]  # has other members
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(
        None, ge=1, description="Of tools that the server runs: there are none."
    )
    top_logprobs: int | None = Field(None, ge=0)
    metadata: dict[str, str] = {}
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
