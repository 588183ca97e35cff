"""Body of /v1/chat/completions."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.protocol.common import (
    IGNORED_GENERATION,
    UNSUPPORTED_GENERATION,
    GenerationBody,
    Items,
)


class ContentPart(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1)
    content: str | Items[str | ContentPart] | None = None

    def fields(self) -> dict[str, Any]:
        """As it was sent."""
        content: Any = self.content
        if isinstance(content, list):
            content = [
                part if isinstance(part, str) else {"type": part.type, **(part.model_extra or {})}
                for part in content
            ]
        return {"role": self.role, **(self.model_extra or {}), "content": content}


class ChatCompletionRequest(GenerationBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **UNSUPPORTED_GENERATION,
        "audio": (),
        # A template from a request is code; only the operator chooses it.
        "chat_template": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "web_search_options": (),
    }
    IGNORED: ClassVar[frozenset[str]] = IGNORED_GENERATION | {
        "function_call", "functions", "modalities", "prediction",
    }  # fmt: skip

    messages: Items[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, description="Older name of max_completion_tokens.")
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=-1)
    tools: Items[dict[str, Any]] = Field([], description="Handed to the chat template.")
    tool_choice: str | dict[str, Any] | None = Field(
        None,
        description="`none` hides the tools; `required` or a function makes the model call.",
    )
    parallel_tool_calls: bool = Field(True, description="False: one call to a reply.")
    documents: Items[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_prompt_text: bool = False

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools
