"""Messages of a chat request -> prompt text, by way of the model's chat template."""

from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import modality_of_part
from pagoda.engine.aside.jobs import RenderChat, Rendered
from pagoda.engine.served.model import ServedModel
from pagoda.server.protocol.chat import ChatMessage
from pagoda.text.template.chat import RESERVED


async def render_prompt(
    served: ServedModel,
    messages: list[ChatMessage],
    *,
    tools: list[dict[str, Any]],
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
    add_special_tokens: bool = False,
) -> Rendered:
    """The prompt as text, and as token ids too where it is short. RequestError where the template
    or the model cannot take it."""
    if served.chat_template is None:
        raise RequestError(
            f"{served.names[0]} has no chat template; use /v1/completions, or start the server "
            "with --chat-template.", "messages",
        )  # fmt: skip
    for name in sorted(RESERVED & variables.keys()):
        raise RequestError(f"{name} is set by the request itself.", f"chat_template_kwargs.{name}")
    return await served.aside.render(
        RenderChat(
            [_marked(message.fields()) for message in messages],
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            add_special_tokens=add_special_tokens,
        )
    )


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """With the types alone of parts that hold media: templates see no more of them."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    marked = [
        {"type": part["type"]}
        if isinstance(part, dict) and modality_of_part(part["type"]) is not None
        else part
        for part in content
    ]
    return {**message, "content": marked}


def final_text(messages: list[ChatMessage]) -> str:
    """Text of a final message of the assistant; empty where there is none."""
    content = messages[-1].fields()["content"] if messages[-1].role == "assistant" else None
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else part.get("text", "") for part in content)
    return content or ""
