"""From the body of /v1/responses to a chat request."""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from pagoda.base.errors import RequestError
from pagoda.config.modality import modality_in
from pagoda.server.bodies.body import parse_fields
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.responses import LOGPROBS, CountInputRequest, ResponsesRequest
from pagoda.server.replies.translation import (
    Conversation,
    Part,
    field_of,
    media_part,
    text_part,
    unseal,
    wrong_kind,
)
from pagoda.server.responses.tools import Toolbox, custom_arguments, flat_name

NAMES = {
    "logprobs": "top_logprobs",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields by the chat API's names."""

Item = dict[str, Any]

_ID_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip


def input_items(body: CountInputRequest) -> list[Item]:
    """The input as items with ids; RequestError where there is none."""
    if "input" not in body.model_fields_set:
        raise RequestError("The request has no input; send a text or a list of items.", "input")
    if isinstance(body.input, str):
        items = [{"type": "message", "role": "user", "content": [_input_text(body.input)]}]
    else:
        items = [{"type": "message", **item} if "role" in item else item for item in body.input]
    return [_with_id(item) for item in items]


class Translated(NamedTuple):
    chat: ChatCompletionRequest
    toolbox: Toolbox
    ignored: list[str]
    """Types of tools and items that do nothing here."""


def chat_request(
    body: CountInputRequest, earlier: list[Item], items: list[Item], route: str
) -> Translated:
    """The chat request of the input items and those that came before them. RequestError or ApiError
    for what cannot be said in a chat request."""
    fields = body.sampling_fields()
    fields["messages"], ignored = _messages(body.instructions, earlier, items)
    if isinstance(body, ResponsesRequest):
        fields["max_completion_tokens"] = body.max_output_tokens
        if LOGPROBS in body.include or body.top_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    fields["chat_template_kwargs"] = body.chat_template_kwargs
    fields["reasoning_effort"] = body.reasoning.effort
    fields["parallel_tool_calls"] = body.parallel_tool_calls
    toolbox = Toolbox(body.tools)
    fields["tools"] = toolbox.functions
    fields["tool_choice"] = toolbox.choice(body.tool_choice)
    chat = parse_fields(fields | _format(body), ChatCompletionRequest, route)
    return Translated(chat, toolbox, [*toolbox.ignored, *ignored])


def _format(body: CountInputRequest) -> dict[str, Any]:
    """The field that says which form the text must have."""
    fields: dict[str, Any] = {}
    form = body.text.format
    if form is not None and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form is not None:
        fields["response_format"] = form
    return fields


def _messages(
    instructions: str | None, earlier: list[Item], items: list[Item]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Chat messages, and the types of items that are none."""
    conversation, ignored = Conversation(), []
    if instructions:
        conversation.say("system", [text_part(instructions)])
    for index, item in enumerate([*earlier, *items], start=-len(earlier)):
        path = f"input.{index}" if index >= 0 else "previous_response_id"
        kind = str(item.get("type"))
        if kind in _ADDERS:
            _ADDERS[kind](conversation, item, path)
        elif kind in _OF_HOSTED_TOOLS:
            ignored.append(kind)
        else:
            raise wrong_kind(item, path, ", ".join((*_ADDERS, "item_reference")))
    if all(message["role"] == "system" for message in conversation.messages):
        # A probe, and a prompt that is all instructions; chat templates want someone to ask.
        conversation.say("user", [text_part("")])
    return conversation.messages, ignored


def _add_message(conversation: Conversation, item: Item, path: str) -> None:
    role = field_of(item, "role", str, path)
    if role not in ("user", "assistant", "system", "developer"):
        raise RequestError(
            f"{path}.role must be user, assistant, system or developer.", f"{path}.role"
        )
    parts = _parts(item.get("content"), f"{path}.content")
    # Few chat templates know a developer; those that do take a system for one.
    conversation.say("system" if role == "developer" else role, parts)


def _add_call(conversation: Conversation, item: Item, path: str) -> None:
    call_id, name, arguments = (
        field_of(item, key, str, path) for key in ("call_id", "name", "arguments")
    )
    conversation.call(call_id, flat_name(item.get("namespace"), name), arguments)


def _add_custom_call(conversation: Conversation, item: Item, path: str) -> None:
    call_id, name, text = (field_of(item, key, str, path) for key in ("call_id", "name", "input"))
    name = flat_name(item.get("namespace"), name)
    conversation.call(call_id, name, custom_arguments(text))


def _add_result(conversation: Conversation, item: Item, path: str) -> None:
    output = item.get("output")
    conversation.result(field_of(item, "call_id", str, path), _parts(output, f"{path}.output"))


def _add_thought(conversation: Conversation, item: Item, path: str) -> None:
    content = item.get("content")
    parts = _parts(content, f"{path}.content") if content else []
    thought = "".join(part.get("text", "") for part in parts)
    conversation.think(thought or unseal(item.get("encrypted_content")))


_ADDERS: dict[str, Callable[[Conversation, Item, str], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_result,
    "custom_tool_call": _add_custom_call,
    "custom_tool_call_output": _add_result,
    "reasoning": _add_thought,
}
# What tools that are left out have written into a conversation that began elsewhere.
_OF_HOSTED_TOOLS = frozenset(
    {"code_interpreter_call", "compaction", "file_search_call", "image_generation_call",
     "local_shell_call", "local_shell_call_output", "mcp_approval_request",
     "mcp_approval_response", "mcp_call", "mcp_list_tools", "tool_search_call",
     "tool_search_output", "web_search_call"}
)  # fmt: skip


def _parts(content: Any, path: str) -> list[Part]:
    if isinstance(content, str):
        return [text_part(content)]
    if not isinstance(content, list):
        raise RequestError(f"{path} must be a string or a list.", path)
    return [_part(part, f"{path}.{number}") for number, part in enumerate(content)]


def _part(part: Any, path: str) -> Part:
    if not isinstance(part, dict):
        raise RequestError(f"{path} must be an object.", path)
    kind = part.get("type")
    match kind:
        case "input_text" | "output_text" | "reasoning_text" | "text":
            return text_part(field_of(part, "text", str, path))
        case "refusal":
            return text_part(field_of(part, "refusal", str, path))
    modality = modality_in("responses", kind) if isinstance(kind, str) else None
    if modality is None:
        raise wrong_kind(part, path, "input_text and output_text")
    if kind in modality.inline:
        return part
    return media_part(modality, field_of(part, modality.url_part, str, path))


def _input_text(text: str) -> Part:
    return {"type": "input_text", "text": text}


def _with_id(item: Item) -> Item:
    prefix = _ID_PREFIXES.get(str(item.get("type")))
    if prefix is None or isinstance(item.get("id"), str):
        return item
    return {"id": f"{prefix}_{uuid.uuid4().hex}", **item}
