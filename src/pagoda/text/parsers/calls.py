"""Tool calls inside a reply: the readers that families share.

A call reader begins behind the tag that opened it. What it took is markup or was given on; what it
passed and left is no call, and comes back as text.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pagoda.text.parsers.base import Delta
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tools import Tools

_ARGUMENTS = ('"arguments"', '"parameters"')
_CALL_KEYS = {"name", "arguments", "parameters", "id", "type"}


class Calls:
    """The calls of one reply so far, and the tools that may be called."""

    def __init__(self, tools: Tools):
        self.tools = tools
        self.count = 0
        self.known_only = False
        """Other names than those of tools are no calls, where a call is not sure."""

    def may_call(self, name: str) -> bool:
        return bool(name) and (not self.known_only or name in self.tools)

    def begin(self, name: str) -> Delta:
        self.count += 1
        return Delta("tool_call", "", self.count - 1, name)

    def give(self, piece: str) -> Delta:
        """The next piece of the arguments."""
        return Delta("tool_call", piece, self.count - 1)


def pass_if(reader: Reader, *options: str) -> Steps[bool]:
    """Drop one of the options, with white space before it, if one stands behind what was taken."""
    yield from reader.space()
    found = yield from reader.literal(*options)
    if found:
        reader.take()
    reader.at = 0
    return bool(found)


CallReader = Callable[[Reader, Calls], Steps[None]]


def arguments(reader: Reader, calls: Calls, name: str | None) -> Steps[bool]:
    """The call `name` with the JSON object that follows as its arguments; False if none does."""
    yield from reader.space()
    start = reader.at
    if not name or not calls.may_call(name) or not (yield from reader.literal("{")):
        return False
    yield from reader.space()
    if (yield from reader.peek()) not in ('"', "}"):
        return False
    reader.at = start
    reader.take()
    yield calls.begin(name)
    yield from reader.json(calls.give)
    return True


def json_calls(reader: Reader, calls: Calls) -> Steps[None]:
    """`{"name": ..., "arguments": {...}}`, a list of them, or several one after the other."""
    yield from reader.space()
    listed = yield from reader.literal("[")
    more = True
    while more:
        if not (yield from _json_call(reader, calls)):
            return
        more = yield from _another(reader)
    if listed:
        yield from pass_if(reader, "]")


def _another(reader: Reader) -> Steps[bool]:
    """Whether one more call follows; then what stands between them is passed."""
    yield from reader.space()
    yield from reader.literal(",", ";")
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        return True
    reader.at = 0
    return False


def known_json_call(reader: Reader, calls: Calls) -> Steps[None]:
    """The rest of a call in plain JSON, behind its `{`: only with a tool's name is it one."""
    name = yield from _header(reader)
    if name in calls.tools and (yield from arguments(reader, calls, name)):
        yield from _trailer(reader)
        yield from pass_if(reader, ";")


def _json_call(reader: Reader, calls: Calls) -> Steps[bool]:
    """One object. Arguments are streamed if name and arguments are its first two keys."""
    yield from reader.space()
    start = reader.at
    if not (yield from reader.literal("{")):
        return False
    name = yield from _header(reader)
    if name and (yield from arguments(reader, calls, name)):
        yield from _trailer(reader)
        return True
    reader.at = start + 1
    yield from reader.space()
    if (yield from reader.peek()) != '"':
        return False
    reader.at = start
    if not (yield from reader.json()):
        return False
    call = _whole_call(reader.text[start : reader.at])
    if call is None or not calls.may_call(call[0]):
        return False
    reader.take()
    yield calls.begin(call[0])
    yield calls.give(call[1])
    return True


def _header(reader: Reader) -> Steps[str | None]:
    """Pass `"name": "...", "arguments":` and return the name; None if something else stands."""
    key = yield from _key(reader, '"type"', '"name"')
    if key == '"type"':
        if not (yield from reader.literal('"function"')) or not (yield from _comma(reader)):
            return None
        key = yield from _key(reader, '"name"')
    if not key or not (yield from reader.literal('"')):
        return None
    name = yield from reader.word('"', "\\")
    if not name or not (yield from reader.literal('"')) or not (yield from _comma(reader)):
        return None
    return name if (yield from _key(reader, *_ARGUMENTS)) else None


def _trailer(reader: Reader) -> Steps[None]:
    """Pass what stands between the arguments and the end of the call's object."""
    while (yield from _comma(reader)):
        if not (yield from _key(reader, '"id"', '"type"')):
            return
        if not (yield from reader.literal('"')) or (yield from reader.word('"')) is None:
            return
        yield from reader.literal('"')
        reader.take()
    yield from pass_if(reader, "}")


def _key(reader: Reader, *keys: str) -> Steps[str]:
    """Pass one of the keys with its colon."""
    yield from reader.space()
    key = yield from reader.literal(*keys)
    yield from reader.space()
    if not key or not (yield from reader.literal(":")):
        return ""
    yield from reader.space()
    return key


def _comma(reader: Reader) -> Steps[bool]:
    yield from reader.space()
    return bool((yield from reader.literal(",")))


def _whole_call(text: str) -> tuple[str, str] | None:
    """(name, arguments) of a call's JSON, None where it is none."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not call.keys() <= _CALL_KEYS:
        return None
    name, given = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str) or not name:
        return None
    if isinstance(given, str):
        return (name, given) if _is_object(given) else None
    if given is not None and not isinstance(given, dict):
        return None
    return name, json.dumps(given or {}, ensure_ascii=False)


def _is_object(text: str) -> bool:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def closed_by(tags: Sequence[str], read: CallReader) -> CallReader:
    """The reader, and the tag that closes what it read; one that is missing is not missed."""

    def reader_with_end(reader: Reader, calls: Calls) -> Steps[None]:
        before = calls.count
        yield from read(reader, calls)
        if calls.count > before and not reader.at:
            yield from pass_if(reader, *tags)

    return reader_with_end
