"""Bodies of /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.protocol.common import Items
from pagoda.server.protocol.dialects import DialectBody

Blocks = str | Items[dict[str, Any]]


class AnthropicMessage(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Thinking(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(
        None, ge=1, description="Most tokens of thought; then the model must answer."
    )
    display: Literal["summarized", "omitted"] = Field(
        "summarized", description="Thought is shown as it is, or not at all."
    )


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(DialectBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **DialectBody.UNSUPPORTED,
        "container": (),
        "mcp_servers": ([],),
        "stop": ([],),
        "stream_options": (),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **DialectBody.IGNORED,
        **dict.fromkeys(
            ("betas", "cache_control", "context_management", "diagnostics", "inference_geo",
             "speed", "user_profile_id"),
            "A hint for Anthropic's own platform; prefixes are cached anyway.",
        ),
    }  # fmt: skip

    messages: Items[AnthropicMessage] = Field(min_length=1)
    system: Blocks = []
    tools: Items[dict[str, Any]] = []
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = Field(
        None, description="Sets the template's variable enable_thinking; the model's default else."
    )
    output_config: OutputConfig = OutputConfig()


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(
        ge=1, description="Lowered to what the context has left behind the prompt."
    )
    stop_sequences: Items[str] = []
