"""Reading a reply that arrives in pieces as if it were there: generators wait where it ends.

A parser is a generator over a Reader. It yields deltas, and None where it needs more text; what
it decides depends on the characters alone, never on how they were cut.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

from pagoda.text.parsers.base import Delta, OutputParser, append_delta
from pagoda.text.partial import held_from

T = TypeVar("T")
Steps = Generator[Delta | None, None, T]
Give = Callable[[str], Delta]

LONGEST_WORD = 256
"""Names, keys and headers are held back until they are whole: no longer ones are waited for."""
_STRUCTURE = re.compile(r'["{}\[\]]')
_QUOTED = re.compile(r'["\\]')


class Reader:
    """Text that was not given on yet. `at` stands behind what a parser has looked at: it passes
    markup, then drops it with `take`, or gives the same characters on as text."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def take(self, leave: int = 0) -> str:
        """All that was passed, but for its last `leave` characters, which stay passed."""
        end = self.at - leave
        passed, self.text, self.at = self.text[:end], self.text[end:], leave
        return passed

    def peek(self) -> Steps[str]:
        """The next character, empty at the end of the reply."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield None
        return self.text[self.at]

    def space(self) -> Steps[None]:
        """Pass white space."""
        while (yield from self.peek()).isspace():
            self.at += 1

    def literal(self, *options: str) -> Steps[str]:
        """Pass the longest of the options that stands here and return it; empty if none does."""
        while True:
            rest = self.text[self.at : self.at + max(map(len, options))]
            open_ones = [o for o in options if len(o) > len(rest) and o.startswith(rest)]
            if not open_ones or self.ended:
                break
            yield None
        found = max((o for o in options if rest.startswith(o)), key=len, default="")
        self.at += len(found)
        return found

    def word(self, *stops: str) -> Steps[str | None]:
        """Pass and return what precedes the first of the stops; None if it does not come soon."""
        while True:
            rest = self.text[self.at :]
            start, stop = first_of(stops, rest)
            held = len(rest) if self.ended else held_from(rest, stops)
            if min(start, held) > LONGEST_WORD or (self.ended and not stop):
                return None
            if stop and start <= held:
                self.at += start
                return rest[:start]
            yield None

    def until(self, tags: tuple[str, ...], give: Give, *, hold_space: bool = False) -> Steps[str]:
        """Give on what precedes the first of the tags, pass that and return it.

        Empty at the end of the reply. With `hold_space`, white space before the tag (or the end)
        is passed with it, for the caller to take or to give on.
        """
        beginning = _beginning(tags)
        while True:
            start, tag, held = len(self.text), "", len(self.text)
            if beginning.search(self.text):  # most pieces of text have not even one "<"
                start, tag = first_of(tags, self.text)
                held = held_from(self.text, tags)
            found = tag if start <= held or self.ended else ""
            before = self.text[: start if found else len(self.text) if self.ended else held]
            if hold_space:
                before = before.rstrip()
            if before:
                self.text = self.text[len(before) :]
                yield give(before)
            if found or self.ended:
                self.at = self.text.find(found) + len(found) if found else len(self.text)
                return found
            yield None

    def json(self, give: Give | None = None) -> Steps[bool]:
        """Pass the JSON object or array that begins here; True once its last bracket is there.

        With `give`, it is given on as it comes. Only brackets and strings are looked at: what is
        wrong between them passes through.
        """
        depth, quoted, closed = 0, False, False
        while True:
            while self.at < len(self.text) and not closed:
                match = (_QUOTED if quoted else _STRUCTURE).search(self.text, self.at)
                if match is None:
                    self.at = len(self.text)
                    break
                self.at = match.end()
                if match[0] == '"':
                    quoted = not quoted
                elif match[0] == "\\":
                    yield from self.peek()
                    self.at = min(self.at + 1, len(self.text))
                else:
                    depth += 1 if match[0] in "{[" else -1
                    closed = depth == 0
            if give is not None and self.at:
                yield give(self.take())
            if closed or self.ended:
                return closed
            yield None


@lru_cache(maxsize=256)
def _beginning(tags: tuple[str, ...]) -> re.Pattern[str]:
    """What the first character of a tag matches."""
    firsts = "".join(re.escape(tag[0]) for tag in tags)
    return re.compile(f"[{firsts}]" if firsts else "(?!)")


def first_of(tags: Iterable[str], text: str) -> tuple[int, str]:
    """Where the first of the tags stands and which it is; (length, "") if none does."""
    places = ((text.find(tag), tag) for tag in tags)
    return min(((place, tag) for place, tag in places if place != -1), default=(len(text), ""))


class SteppedParser(OutputParser):
    """Drives a parsing generator; deltas of one kind that come together are one.

    Text is given on as it stood, at once when the reader has let go of it.
    """

    def __init__(self, reader: Reader, steps: Steps[None]):
        super().__init__()
        self._reader = reader
        self._steps = steps
        self._fed = 0

    def feed(self, text: str) -> list[Delta]:
        self._fed += len(text)
        self._reader.text += text
        return self._advance()

    def finish(self) -> list[Delta]:
        self._reader.ended = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        deltas: list[Delta] = []
        for step in self._steps:
            if step is None:
                break
            if not step.text and step.tool_name is None:
                continue
            if step.kind == "text":
                end = self._fed - len(self._reader.text)
                self._found_text(end - len(step.text), end)
            append_delta(deltas, step)
        return deltas
