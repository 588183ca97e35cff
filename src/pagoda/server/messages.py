"""Messages of a chat request -> prompt text, by way of the model's chat template."""

from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import Modality, modality_of_part
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
            [_shown(message.fields(), served) for message in messages],
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            add_special_tokens=add_special_tokens,
        )
    )


def _shown(message: dict[str, Any], served: ServedModel) -> dict[str, Any]:
    """As templates see it: of parts that hold media the types alone."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    return {**message, "content": [_shown_part(part, message["role"], served) for part in content]}


def _shown_part(part: Any, role: str, served: ServedModel) -> Any:
    modality = modality_of_part(part["type"]) if isinstance(part, dict) else None
    if modality is None:
        return part
    if _is_unseen(modality, role, served):
        words = f"[{modality.kind}] (This model takes no {modality.words}: it was left out.)"
        return {"type": "text", "text": words}
    return {"type": part["type"]}


def _is_unseen(modality: Modality, role: str, served: ServedModel) -> bool:
    """Whether words stand for it: a tool's result that the model cannot take would end an agent's
    session, since it is in every later request."""
    return role in ("tool", "function") and modality.kind not in served.modalities


def unseen_media(messages: list[ChatMessage], served: ServedModel) -> list[str]:
    """Kinds of media in tools' results that the model does not take: `render_prompt` has words in
    their place."""
    parts = (
        (message.role, None if isinstance(part, str) else modality_of_part(part.type))
        for message in messages
        if isinstance(message.content, list)
        for part in message.content
    )
    return [found.kind for role, found in parts if found and _is_unseen(found, role, served)]


def final_text(messages: list[ChatMessage]) -> str:
    """Text of a final message of the assistant; empty where there is none."""
    content = messages[-1].fields()["content"] if messages[-1].role == "assistant" else None
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else part.get("text", "") for part in content)
    return content or ""
