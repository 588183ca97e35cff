"""Bodies of /tokenize and /detokenize, in vLLM's and in llama-server's words."""

from typing import Any

from pydantic import Field

from pagoda.server.protocol.chat import ChatMessage
from pagoda.server.protocol.common import Body, Items


class TokenizeRequest(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Items[ChatMessage] | None = Field(None, min_length=1)
    content: str | None = Field(None, description="llama-server's name of the prompt.")
    add_special_tokens: bool | None = Field(
        None, description="True by default for a prompt, False for messages."
    )
    return_token_strs: bool = False
    add_special: bool = Field(False, description="llama-server: add_special_tokens of `content`.")
    parse_special: bool = True
    with_pieces: bool = False
    tools: Items[dict[str, Any]] = []
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Items[int]
