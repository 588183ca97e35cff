"""Bodies of /api/chat and /api/generate -> chat requests."""

from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import parse_fields
from pagoda.server.ollama.options import text_fields
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.ollama import (
    OllamaCall,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from pagoda.server.replies.translation import Part, media_part, text_part


def chat_request(
    body: OllamaChatRequest, options: OllamaOptions, served: ServedModel, route: str
) -> ChatCompletionRequest:
    """RequestError or ApiError for what cannot be said in a chat request."""
    fields = text_fields(body, options, served)
    fields["messages"] = _messages(body.messages, served)
    fields["tools"] = body.tools
    last = fields["messages"][-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        # A reply that is begun: the model goes on where it ends.
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return parse_fields(fields, ChatCompletionRequest, route)


def generate_request(
    body: OllamaGenerateRequest, options: OllamaOptions, served: ServedModel, route: str
) -> ChatCompletionRequest:
    """The prompt as what a user says; raises as `chat_request`."""
    fields = text_fields(body, options, served)
    user = {"role": "user", "content": _content(body.prompt, body.images, served)}
    system = [{"role": "system", "content": body.system}] if body.system else []
    fields["messages"] = [*system, user]
    return parse_fields(fields, ChatCompletionRequest, route)


def _messages(messages: list[OllamaMessage], served: ServedModel) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # calls without a result: ids and names
    for message in messages:
        fields: dict[str, Any] = {
            "role": message.role,
            "content": _content(message.content or "", message.images or [], served),
        }
        if message.thinking:
            fields["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [_call(call, len(told), i) for i, call in enumerate(message.tool_calls)]
            fields["tool_calls"] = calls
            waiting += [(call["id"], call["function"]["name"]) for call in calls]
        if message.role == "tool":
            fields["tool_call_id"] = _answered(message, waiting)
            if message.tool_name:
                fields["name"] = message.tool_name
        told.append(fields)
    return told


def _call(call: OllamaCall, turn: int, number: int) -> dict[str, Any]:
    """Some templates want an id, and clients need not send one."""
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or f"call_{turn}_{number}", "type": "function", "function": function}


def _answered(message: OllamaMessage, waiting: list[tuple[str, str]]) -> str:
    """The id of the call that a result belongs to: by its id, else its name, else the first one
    without a result."""
    for call_id, name in waiting:
        named = message.tool_name in (None, "", name)
        if call_id == message.tool_call_id or (message.tool_call_id is None and named):
            waiting.remove((call_id, name))
            return call_id
    return message.tool_call_id or "call_unknown"


def _content(text: str, images: list[str], served: ServedModel) -> str | list[Part]:
    if not images:
        return text
    if "image" not in served.modalities:
        raise RequestError(
            f"{served.names[0]} reads text only; leave images out, or serve a model that sees.",
            "images",
        )
    modality = MODALITIES["image"]
    parts = [media_part(modality, _data_url(image)) for image in images]
    return [*parts, text_part(text)] if text else parts


def _data_url(image: str) -> str:
    """Of base64 alone, which is what the dialect has; nothing is fetched."""
    return image if image[:5].lower() == "data:" else f"data:image/png;base64,{image}"
