"""Tools spelled out in plain turns, for chat templates that have no place for them: described in
the system turn, calls and results as text of the conversation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import meta

from pagoda.text.grammar.calls import CallForm, WrittenCall
from pagoda.text.template.sandbox import ENVIRONMENT

Message = Mapping[str, Any]

_SYSTEM_ROLES = ("system", "developer")
_RESULT_ROLES = ("tool", "function")
_EXAMPLE = WrittenCall("FUNCTION", '{"ARGUMENT": "VALUE"}')
_INTRODUCTION = """\
# Tools

You can call the functions below. Each line describes one: its name, what it does, and the JSON \
schema of its arguments.
"""
_RULES = """
To call a function, write its name and its arguments as JSON, exactly in this form:
{form}

The next turn gives the result. Call a function only where it helps; otherwise answer in plain \
text."""


def shows_tools(source: str) -> bool:
    """Whether a template writes the tools of a request into the prompt."""
    return "tools" in meta.find_undeclared_variables(ENVIRONMENT.parse(source))


def shows_calls(source: str) -> bool:
    """Whether a template writes the calls of earlier turns, and then their results, too."""
    return "tool_calls" in source


def with_description(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    form: CallForm,
    *,
    takes_system: bool,
) -> list[Message]:
    """The conversation with the tools in its system turn, or in front of the user's first turn
    where the template takes no system turn."""
    described = _INTRODUCTION + "\n".join(_described(tool) for tool in tools) + "\n"
    described += _RULES.format(form=form.written([_EXAMPLE]))
    first, rest = None, list(messages)
    if rest and rest[0].get("role") in _SYSTEM_ROLES:
        first = rest.pop(0)
        described = _joined([_content(first), described], "\n\n")
    if takes_system:
        return [{"role": "system", **(first or {}), "content": described}, *rest]
    if rest and rest[0].get("role") == "user":
        user = rest.pop(0)
        return [{**user, "content": _joined([described, _content(user)], "\n\n")}, *rest]
    return [{"role": "user", "content": described}, *rest]


def with_spelled_calls(
    messages: Sequence[Message], form: CallForm, *, results: bool = True
) -> list[Message]:
    """Calls as the text that a model writes, and `results` as turns of the user; what the user says
    behind results is of the same turn, since many templates want user and assistant to alternate.
    """
    spelled: list[Message] = []
    names: dict[str, str] = {}
    turn: list[Any] = []
    for message in messages:
        role = message.get("role")
        if role in _RESULT_ROLES and results:
            turn.append(_result(message, names))
        elif turn and role == "user":
            turn.append(_content(message))
        else:
            spelled += _user_turn(turn)
            turn = []
            called = role == "assistant" and message.get("tool_calls")
            spelled.append(_spelled(message, form, names) if called else message)
    return [*spelled, *_user_turn(turn)]


def _described(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    function = function if isinstance(function, Mapping) else tool
    told = {
        key: function[key] for key in ("name", "description", "parameters") if function.get(key)
    }
    return json.dumps(told, ensure_ascii=False)


def _spelled(message: Message, form: CallForm, names: dict[str, str]) -> Message:
    """The turn with its calls as text; what is no call is left out. `names` learns their ids."""
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        call_id = call["id"] if isinstance(call.get("id"), str) else None
        if call_id is not None:
            names[call_id] = function["name"]
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(WrittenCall(function["name"], arguments, call_id))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    text = [form.written(calls)] if calls else []
    return {**kept, "content": _joined([_content(message), *text], "\n")}


def _result(message: Message, names: Mapping[str, str]) -> Any:
    """The content of a turn that gives a result: with the call's id, and the function's name."""
    call_id = message.get("tool_call_id")
    name = message.get("name") or names.get(str(call_id))
    marks = "".join(
        f" {key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in (("id", call_id), ("name", name))
        if isinstance(value, str)
    )
    return _joined([f"<tool_response{marks}>", _content(message), "</tool_response>"], "\n")


def _user_turn(contents: list[Any]) -> list[Message]:
    return [{"role": "user", "content": _joined(contents, "\n")}] if contents else []


def _content(message: Message) -> Any:
    """A string where it is of text alone, else parts."""
    content = message.get("content") or ""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if _is_text(part) else part for part in content]
    return "\n".join(texts) if all(isinstance(text, str) for text in texts) else content


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _joined(contents: Sequence[Any], separator: str) -> Any:
    """Contents as one: a string where all are, else a list of parts. Empty strings are left out."""
    contents = [content for content in contents if content != ""]
    if all(isinstance(content, str) for content in contents):
        return separator.join(contents)
    parts: list[Any] = []
    for index, content in enumerate(contents):
        divider = separator if index else ""
        if isinstance(content, list):
            parts += ([_text_part(divider)] if divider else []) + content
        else:
            parts.append(_text_part(divider + content))
    return parts


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
