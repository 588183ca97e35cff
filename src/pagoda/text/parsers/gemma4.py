"""Gemma 4: `<|channel>thought\\n...<channel|>`, then text and
`<|tool_call>call:NAME{key:<|"|>text<|"|>,number:42}<tool_call|>`."""

import json

from pagoda.text.parsers.calls import Calls, closed_by
from pagoda.text.parsers.reader import LONGEST_WORD, Reader, Steps
from pagoda.text.parsers.tagged import Markup, Thought

QUOTE = '<|"|>'
_PUNCTUATION = "{}[]:,"


def gemma_call(reader: Reader, calls: Calls) -> Steps[None]:
    if not (yield from reader.literal("call:")):
        return
    name = ((yield from reader.word("{")) or "").strip()
    if not calls.may_call(name):
        return
    start = reader.at
    yield from reader.literal("{")
    if not (yield from _begins_well(reader)):
        return
    reader.at = start
    reader.take()
    yield calls.begin(name)
    yield from _arguments(reader, calls)


def _begins_well(reader: Reader) -> Steps[bool]:
    """Whether a key or the end of the arguments follows."""
    if (yield from reader.literal("}", QUOTE)):
        return True
    key = yield from reader.word(":", "<", "}")
    return bool(key) and (yield from reader.peek()) == ":"


def _arguments(reader: Reader, calls: Calls) -> Steps[None]:
    """Gemma's notation to JSON, token by token, to the bracket that closes the first."""
    depth = 0
    while mark := (yield from reader.peek()):
        if (yield from reader.literal(QUOTE)):
            yield from _string(reader, calls)
        elif mark in _PUNCTUATION:
            reader.at += 1
            reader.take()
            yield calls.give(mark + " " if mark in ":," else mark)
            depth += (mark in "{[") - (mark in "}]")
            if depth == 0:
                return
        elif mark.isspace():
            yield from reader.space()
            reader.take()
        else:
            yield from _bare(reader, calls)


def _string(reader: Reader, calls: Calls) -> Steps[None]:
    reader.take()
    yield calls.give('"')
    closed = yield from reader.until((QUOTE,), lambda text: calls.give(_quoted(text)[1:-1]))
    reader.take()
    if closed:
        yield calls.give('"')


def _bare(reader: Reader, calls: Calls) -> Steps[None]:
    """A key, a number, true, false or null; whatever else is not quoted becomes a string."""
    if (yield from reader.word(*_PUNCTUATION, QUOTE)) is None:
        reader.at = min(len(reader.text), LONGEST_WORD)
    word = reader.take().strip()
    follows = yield from reader.peek()
    if follows == ":":
        yield calls.give(word if _is_json(word) and word[0] == '"' else _quoted(word))
    else:
        yield calls.give(word if _is_json(word) or not follows else _quoted(word))


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


MARKUP = Markup(
    thought=Thought("<|channel>", ("\n<channel|>", "<channel|>"), anywhere=True, label="thought\n"),
    calls={"<|tool_call>": closed_by(("<tool_call|>",), gemma_call)},
    control=("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", QUOTE),
)
