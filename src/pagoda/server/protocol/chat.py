"""Bodies of /v1/chat/completions and of its batch."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.protocol.common import (
    IGNORED_GENERATION,
    UNSUPPORTED_GENERATION,
    UNSUPPORTED_STRUCTURE,
    GenerationBody,
    Items,
    MovableBody,
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


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """What a client expects of the reply."""

    type: Literal["content"]
    content: str | Items[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(MovableBody, GenerationBody):
    """All but the messages."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **{
            name: harmless
            for name, harmless in UNSUPPORTED_GENERATION.items()
            if name
            not in (
                "kv_transfer_params",
                "media_io_kwargs",
                "mm_processor_kwargs",
                "thinking_token_budget",
            )
        },
        "audio": (),
        # A template from a request is code; only the operator chooses it.
        "chat_template": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "web_search_options": (),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        **IGNORED_GENERATION,
        "reasoning_format": "Thought always comes as `reasoning` and `reasoning_content`.",
    }

    max_tokens: int | None = Field(None, ge=1, description="Older name of max_completion_tokens.")
    max_completion_tokens: int | None = Field(None, ge=1, description="-1: what there is room for.")
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
    thinking_token_budget: int | None = Field(
        None, ge=1, description="Most tokens of thought; then the model must answer."
    )
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    media_io_kwargs: dict[str, Any] = Field(
        {}, description='`{"video": {"fps": 1, "num_frames": 16}}`: which frames are looked at.'
    )
    mm_processor_kwargs: dict[str, Any] = Field(
        {}, description="`fps` and `num_frames` of videos; these count more."
    )
    return_prompt_text: bool = False
    verbose: bool = Field(False, description="The reply has the prompt's text in `__verbose`.")

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools


class ChatCompletionRequest(ChatBody):
    messages: Items[ChatMessage] = Field(min_length=1)
    prediction: Prediction | None = Field(
        None,
        description="What the reply will probably say: it comes faster where that is so, and is "
        "the same where it is not.",
    )


class BatchChatRequest(ChatBody):
    """One choice per conversation."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **ChatBody.UNSUPPORTED,
        **UNSUPPORTED_STRUCTURE,
        "kv_transfer_params": (),
        "n": (1,),
        "prompt_logprobs": (),
        "response_format": ({"type": "text"},),
        "return_prompt_text": (False,),
        "verbose": (False,),
        "return_token_ids": (False,),
        "stream": (False,),
        "structured_outputs": (),
        "thinking_token_budget": (),
        "tools": ([],),
    }

    IGNORED: ClassVar[Mapping[str, str]] = {
        **ChatBody.IGNORED,
        "prediction": "A hint for one reply, and a batch has several.",
    }

    messages: Items[Annotated[Items[ChatMessage], Field(min_length=1)]] = Field(
        min_length=1, max_length=1024
    )
