"""Tools of any type: what of them becomes a function of the chat request, and how a call of that
function is told to the client."""

import json
import re
from typing import Any, NamedTuple

from pagoda.base.errors import RequestError
from pagoda.server.replies.translation import field_of

Item = dict[str, Any]

_INPUT = "input"
"""The only argument of the function that a custom tool becomes."""
_CHOICES = ("auto", "none", "required")
_INPUT_START = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Of what follows, as far as it is certain: an escape is whole, and a high surrogate has its pair.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_INPUT_TEXT = re.compile(
    rf'(?:[^"\\]|\\[^u]|{_HIGH}{_LOW}|{_HIGH}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])..)'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*",
    re.DOTALL,
)


class Called(NamedTuple):
    """Which of the client's tools a function stands for."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Toolbox:
    """The tools of one request. RequestError names one that is wrong."""

    def __init__(self, tools: list[Item]) -> None:
        self.functions: list[Item] = []
        """In the form of the chat API."""
        self.ignored: list[str] = []
        """Types of tools that only OpenAI's own servers run."""
        self._called: dict[str, Called] = {}
        for index, tool in enumerate(tools):
            self._add(tool, f"tools.{index}", None)

    def called(self, function: str) -> Called:
        return self._called.get(function, Called(function))

    def choice(self, choice: str | Item) -> str | Item:
        """`tool_choice` in the form of the chat API."""
        if isinstance(choice, str):
            if choice not in _CHOICES:
                raise RequestError(
                    f"tool_choice must be one of {', '.join(_CHOICES)}, or an object.",
                    "tool_choice",
                )
            return choice
        kind = choice.get("type")
        if kind in ("function", "custom"):
            return self._function(choice)
        if kind == "allowed_tools":
            listed = choice.get("tools")
            tools = listed if isinstance(listed, list) else []
            ours = [tool for tool in tools if isinstance(tool, dict) and "name" in tool]
            return {**choice, "tools": [self._function(tool) for tool in ours]}
        if not isinstance(kind, str):
            raise RequestError("tool_choice.type must be a string.", "tool_choice.type")
        self.ignored.append(kind)
        return "auto"

    def _function(self, choice: Item) -> Item:
        name = field_of(choice, "name", str, "tool_choice")
        return {"type": "function", "function": {"name": flat_name(choice.get("namespace"), name)}}

    def _add(self, tool: Item, path: str, namespace: str | None) -> None:
        kind = field_of(tool, "type", str, path)
        if kind == "namespace":
            inner = field_of(tool, "tools", list, path)
            name = field_of(tool, "name", str, path)
            for index, member in enumerate(inner):
                if not isinstance(member, dict):
                    raise RequestError(f"{path}.tools.{index} must be an object.", f"{path}.tools")
                self._add(member, f"{path}.tools.{index}", name)
        elif kind in ("function", "custom"):
            name = field_of(tool, "name", str, path)
            flat = flat_name(namespace, name)
            self._called[flat] = Called(name, namespace, kind == "custom")
            told = _custom(tool) if kind == "custom" else tool
            function = {
                "name": flat,
                "description": told.get("description"),
                "parameters": told.get("parameters"),
                "strict": told.get("strict"),
            }
            given = {key: value for key, value in function.items() if value is not None}
            self.functions.append({"type": "function", "function": given})
        else:
            self.ignored.append(kind)


def flat_name(namespace: object, name: str) -> str:
    """The function that stands for a tool of a namespace; models know none."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


def custom_arguments(text: str) -> str:
    """Arguments of the function that stands for a custom tool which was given a text."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def _custom(tool: Item) -> Item:
    """A custom tool as a function."""
    form = tool.get("format")
    told = [text] if isinstance(text := tool.get("description"), str) else []
    if isinstance(form, dict) and isinstance(definition := form.get("definition"), str):
        told.append(f"The input follows this grammar ({form.get('syntax')}):\n{definition}")
    return {
        "description": "\n\n".join(told),
        "parameters": {
            "type": "object",
            "properties": {
                _INPUT: {"type": "string", "description": "All that the tool is given, as it is."}
            },
            "required": [_INPUT],
            "additionalProperties": False,
        },
    }


class CustomInput:
    """Takes the text for a custom tool out of the arguments of its function, piece by piece.

    Arguments of another form are the text themselves: the tool says best what is wrong with it.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._inside: bool | None = None
        """Within the text; None before it."""

    def feed(self, arguments: str) -> str:
        """What became certain of the text."""
        self._unread += arguments
        if self._inside is None and (start := _INPUT_START.match(self._unread)):
            self._inside, self._unread = True, self._unread[start.end() :]
        if not self._inside:
            return ""
        found = _INPUT_TEXT.match(self._unread)
        assert found is not None, "it matches an empty text, too"
        self._unread = self._unread[found.end() :]
        self._inside = not self._unread.startswith('"')
        return _unescaped(found[0])

    def finish(self) -> str:
        """What is left where the arguments were not as they should be."""
        return self._unread if self._inside is None else ""


def _unescaped(raw: str) -> str:
    try:
        text: str = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw  # an escape that JSON does not know
    # Half a surrogate pair is no text, and cannot be sent.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
