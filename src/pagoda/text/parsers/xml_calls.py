"""Calls with a tag for each parameter: the JSON of the arguments is written as values come."""

import json
from dataclasses import dataclass

from pagoda.text.parsers.base import Delta
from pagoda.text.parsers.calls import CallReader, Calls
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tools import ANYTHING, STRING, as_json


@dataclass(frozen=True)
class XmlForm:
    """The tags, in the order in which they stand."""

    name: tuple[str, str]
    """Around the function's name; the second is empty where the first key's tag ends it."""
    key: tuple[str, str]
    value: tuple[str, str]
    """The first is empty where the value follows its key at once."""
    ends: tuple[str, ...]
    """Any of these ends the call; those that are not part of it are left for others."""
    kinds: tuple[str, str] | None = None
    """Behind a key's second tag: what says that its value is a string, and what says that it is
    JSON. None: the tools tell."""


def xml_calls(form: XmlForm, *, opened: bool = False) -> CallReader:
    """A reader of one call or several. `opened`: the tag that led here was the first of a call."""

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        yield from reader.space()
        if not opened and form.name[0] and not (yield from reader.literal(form.name[0])):
            return
        while (yield from _call(reader, calls, form)):
            yield from reader.space()
            if not form.name[0] or not (yield from reader.literal(form.name[0])):
                reader.at = 0
                return

    return read


def _call(reader: Reader, calls: Calls, form: XmlForm) -> Steps[bool]:
    """A call from behind the tag of its name; whether it is whole."""
    name = ((yield from reader.word(form.name[1] or form.key[0], "\n", "<")) or "").strip()
    # Without a tag of its own, a name could be anything.
    if not calls.may_call(name) or (not form.name[0] and name not in calls.tools):
        return False
    if form.name[1] and not (yield from reader.literal(form.name[1])):
        return False
    yield from reader.space()
    next_tag = yield from reader.literal(form.key[0], *form.ends)
    if not next_tag:
        return False
    reader.take()
    yield calls.begin(name)
    yield calls.give("{")
    between = ""
    while next_tag == form.key[0]:
        if not (yield from _parameter(reader, calls, form, name, between)):
            return False
        between = ", "
        yield from reader.space()
        next_tag = yield from reader.literal(form.key[0], *form.ends)
    if next_tag:
        reader.take()
        yield calls.give("}")
    # Where the markup breaks off the arguments stay open: nobody should run half a call.
    return bool(next_tag)


def _parameter(reader: Reader, calls: Calls, form: XmlForm, name: str, between: str) -> Steps[bool]:
    """From behind a key's opening tag to behind its value; whether it is whole."""
    key = yield from reader.word(form.key[1])
    if key is None:
        return False
    yield from reader.literal(form.key[1])
    kinds = calls.tools.kinds(name, key.strip())
    if form.kinds is not None:
        kind = yield from reader.literal(*form.kinds)
        if not kind:
            return False
        kinds = STRING if kind == form.kinds[0] else ANYTHING - STRING
    if form.value[0]:
        yield from reader.space()
        if not (yield from reader.literal(form.value[0])):
            return False
    reader.take()
    yield calls.give(between + json.dumps(key.strip(), ensure_ascii=False) + ": ")
    return (yield from _value(reader, calls, form, kinds))


def _value(reader: Reader, calls: Calls, form: XmlForm, kinds: frozenset[str]) -> Steps[bool]:
    """A value to its closing tag; one new line on either side belongs to the markup."""
    yield from reader.literal("\n")
    reader.take()
    tags = ("\n" + form.value[1], form.value[1])
    if kinds == STRING:
        yield calls.give('"')
        closed = yield from reader.until(tags, lambda text: calls.give(_escaped(text)))
        if closed:
            yield calls.give('"')
    else:
        raw: list[str] = []

        def keep(text: str) -> Delta:
            raw.append(text)
            return calls.give("")

        closed = yield from reader.until(tags, keep)
        yield calls.give(as_json("".join(raw), kinds) if closed else "".join(raw))
    reader.take()
    return bool(closed)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
