"""Messages of a request in the form that chat templates read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.text.template.content_format import ContentFormat, shape_content

# Clients send back what a server called reasoning; templates read it under the first name
# (gpt-oss under the second).
_REASONING = ("reasoning_content", "thinking", "reasoning")

_SHORT = 9


def template_messages(
    messages: Sequence[Mapping[str, Any]],
    wanted: ContentFormat,
    *,
    parse_arguments: bool,
    short_ids: bool = False,
) -> list[dict[str, Any]]:
    """Fresh messages: content in the wanted form, reasoning under the names templates know.

    `parse_arguments` makes objects of tool-call arguments that came as JSON strings; OpenAI's
    clients send strings, most templates want objects. `short_ids` renames tool calls to nine
    letters and digits. Raises RequestError for what is no message.
    """
    shaped = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{index}] is no message; it needs a 'role' and a 'content'.",
                param="messages",
            )
        copy = dict(message)
        if copy.get("content") is None:
            _check_silence(index, copy)
        silent = not copy.get("content") and copy["role"] == "assistant"
        copy["content"] = wanted.silence if silent else shape_content(copy["content"], wanted)
        reasoning = next((copy[name] for name in _REASONING if copy.get(name) is not None), None)
        if reasoning is not None:
            copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
        if copy.get("tool_calls"):
            copy["tool_calls"] = [_tool_call(call, parse_arguments) for call in copy["tool_calls"]]
        if short_ids:
            _shorten_ids(copy)
        shaped.append(copy)
    return shaped


def _check_silence(index: int, message: Mapping[str, Any]) -> None:
    """Only a model may say nothing: a turn of tool calls alone."""
    if message["role"] != "assistant":
        raise RequestError(
            f"messages[{index}] of the role {message['role']!r} has no content; send a string or "
            "a list of parts.",
            param="messages",
        )


def _tool_call(call: Any, parse_arguments: bool) -> Any:
    """A tool call with its arguments as an object, or as a JSON string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if parse_arguments and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif not parse_arguments and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _shorten_ids(message: dict[str, Any]) -> None:
    """In place; a call and its result have the same id afterwards, too."""
    if isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = _short_id(message["tool_call_id"])
    for number, call in enumerate(message.get("tool_calls") or ()):
        if isinstance(call, Mapping) and isinstance(call.get("id"), str):
            message["tool_calls"][number] = {**call, "id": _short_id(call["id"])}


def _short_id(call_id: str) -> str:
    if len(call_id) == _SHORT and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT]


def _parsed(arguments: str) -> Any:
    """Arguments that a model once botched stay a string: the history must go on."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
