"""Calls in text, as in Python but with names and quoted strings only: `drag(a='1 2', b="3 4")`."""

import re

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.strict import shown

_NAME = re.compile(r"[A-Za-z_]\w{0,40}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_REQUIRED = "\0"


class Call:
    """A name and its arguments; each is taken out as it is read, `close` refuses what is left."""

    def __init__(self, name: str, arguments: dict[str, str]):
        self.name = name
        self._left = arguments

    def take(self, *names: str, default: str = _REQUIRED) -> str:
        """The argument by the first of its names; ActionError where there is none, or two."""
        given = [name for name in names if name in self._left]
        if len(given) > 1:
            raise ActionError(f"{self.name} has both {given[0]} and {given[1]}; write one.")
        if given:
            return self._left.pop(given[0])
        if default is _REQUIRED:
            raise ActionError(f"{self.name} needs {names[0]}='...'.")
        return default

    def close(self) -> None:
        if self._left:
            name, value = next(iter(self._left.items()))
            raise ActionError(f"{self.name} has no argument {name} (its value was {shown(value)}).")


def read_calls(text: str) -> list[Call]:
    """Every call in the text, which holds nothing else but blanks. Raises ActionError."""
    reader = _Reader(text)
    calls = []
    while not reader.at_end():
        calls.append(reader.call())
    return calls


class _Reader:
    def __init__(self, text: str):
        self._text = text
        self._place = 0

    def at_end(self) -> bool:
        self._skip_blanks()
        return self._place == len(self._text)

    def call(self) -> Call:
        name = self._name("an action such as click(point='<point>x y</point>')")
        self._expect("(", f"{name}(...)")
        arguments: dict[str, str] = {}
        while not self._accept(")"):
            if arguments:
                self._expect(",", "a comma between arguments")
            argument = self._name(f"an argument of {name}, such as key='...'")
            if argument in arguments:
                raise ActionError(f"{name} has the argument {argument} twice.")
            self._expect("=", f"{argument}='...'")
            arguments[argument] = self._string(argument)
        return Call(name, arguments)

    def _skip_blanks(self) -> None:
        while self._text[self._place : self._place + 1].isspace():
            self._place += 1

    def _name(self, wanted: str) -> str:
        self._skip_blanks()
        found = _NAME.match(self._text, self._place)
        if found is None:
            raise self._unexpected(wanted)
        self._place = found.end()
        return found[0]

    def _accept(self, sign: str) -> bool:
        self._skip_blanks()
        if not self._text.startswith(sign, self._place):
            return False
        self._place += len(sign)
        return True

    def _expect(self, sign: str, wanted: str) -> None:
        if not self._accept(sign):
            raise self._unexpected(wanted)

    def _string(self, argument: str) -> str:
        self._skip_blanks()
        quote = self._text[self._place : self._place + 1]
        if quote not in ("'", '"'):
            raise self._unexpected(f"the value of {argument} in quotes")
        self._place += 1
        parts: list[str] = []
        special = re.compile(rf"[\\{quote}]")
        while True:
            found = special.search(self._text, self._place)
            if found is None:
                raise ActionError(f"The value of {argument} has no closing {quote}.")
            parts.append(self._text[self._place : found.start()])
            self._place = found.end()
            if found[0] == quote:
                return "".join(parts)
            escape = self._text[self._place : self._place + 1]
            if escape not in _ESCAPES:
                raise ActionError(
                    f"In {argument}, {shown(chr(92) + escape)[1:-1]} is no escape; write \\\\ for "
                    "a backslash."
                )
            parts.append(_ESCAPES[escape])
            self._place += 1

    def _unexpected(self, wanted: str) -> ActionError:
        rest = self._text[self._place : self._place + 40]
        seen = shown(rest) if rest else "the end"
        return ActionError(f"There should be {wanted}, not {seen}.")
