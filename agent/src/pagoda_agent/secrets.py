"""Secrets by name: models see and write `{{secret:NAME}}`, only the driver's typing gets the text.

`reveal` is called where text goes to the driver, and nowhere else; `redact` on everything that is
written, shown or sent.
"""

import base64
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagoda_agent.base import env
from pagoda_agent.base.errors import ActionError, ConfigError
from pagoda_agent.drivers.address import require_private

LEAST_LENGTH = 4
"""Shorter ones are found in ordinary text everywhere and cannot be kept out of it."""
VARIABLE_PREFIX = "PAGODA_SECRET_"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLACEHOLDER = re.compile(r"\{\{secret:(.*?)\}\}")
# What wrapping puts between two characters: blanks, and line breaks as JSON and URLs write them.
# Bounded and possessive, so that no text makes the search slow.
_BREAK = r"\s|%0[AaDd9]"
_ESCAPED = r"\\{1,8}[nrt]"
_GAP = rf"(?:{_BREAK}|{_ESCAPED}){{0,80}}+"
_GAP_BEFORE_BACKSLASH = rf"(?:{_BREAK}){{0,80}}+"
_WRITTEN_BLANK = rf"{_BREAK}|%(?:25)?20|%250[AaDd9]|&#0{{0,4}}(?:9|10|13|32);"
# Twice, as the next word may itself begin with a plus or a backslash.
_BLANK = rf"(?:(?:{_WRITTEN_BLANK}){{0,80}}+|(?:{_WRITTEN_BLANK}|{_ESCAPED}|\+){{0,80}}+)"


class Secrets:
    """Values are shown by nothing of this class but `reveal`."""

    def __init__(self, values: Mapping[str, str]):
        for name, value in values.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is no name for a secret; use letters, digits, - and _."
                )
            if len("".join(value.split())) < LEAST_LENGTH:
                raise ConfigError(
                    f"The secret {name} is shorter than {LEAST_LENGTH} characters; it could not "
                    "be kept out of logs."
                )
        self._values = dict(values)
        longest_first = sorted(values.items(), key=lambda item: -len(item[1]))
        self._patterns = [(name, _pattern(value)) for name, value in longest_first]

    @classmethod
    def load(cls, file: Path | None = None) -> "Secrets":
        """From variables PAGODA_SECRET_NAME and, before them, a file of lines NAME=VALUE that
        only its owner can read (`#` begins a comment line). Raises ConfigError."""
        return cls({**env.with_prefix(VARIABLE_PREFIX), **(_read(file) if file else {})})

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def reveal(self, text: str) -> str:
        """The text with its placeholders' values. ActionError for a name that is not known."""
        parts = _PLACEHOLDER.split(text)
        if any("{{secret" in part for part in parts[::2]):
            raise ActionError("A placeholder for a secret must be written {{secret:NAME}}.")
        for index in range(1, len(parts), 2):
            if parts[index] not in self._values:
                known = ", ".join(self._values) or "none"
                raise ActionError(f"There is no secret {parts[index][:64]!r}; known: {known}.")
            parts[index] = self._values[parts[index]]
        return "".join(parts)

    def redact(self, text: str) -> str:
        """The text with its placeholder wherever a value stands: as it is or in Base64, hex, URL,
        JSON or HTML writing, also where blanks or line breaks divide it."""
        for name, pattern in self._patterns:
            text = pattern.sub("{{secret:" + name + "}}", text)
        return text

    def redact_all(self, value: Any) -> Any:
        """The same for every text in lists and objects, names included."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact_all(key): self.redact_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.redact_all(item) for item in value)
        return value


def _pattern(value: str) -> re.Pattern[str]:
    raw = value.encode()
    in_json = json.dumps(value)[1:-1]
    exact = [value, in_json, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(in_json)[1:-1]]
    bent = [_divided(value), *_base64_forms(raw), _GAP.join(map(_either_case, raw.hex()))]
    return re.compile("|".join(dict.fromkeys([*map(re.escape, exact), *bent])))


def _divided(value: str) -> str:
    """Each character as it is or in one of its escaped forms, with breaks in between."""
    words = []
    # Other blanks are characters like any.
    for word in re.split(r"[ \t\r\n]+", value.strip(" \t\r\n")):
        pattern = ""
        for unit in re.findall(r"\\+|.", word, re.DOTALL):
            if pattern:
                pattern += _GAP_BEFORE_BACKSLASH if unit[0] == "\\" else _GAP
            pattern += _backslashes(len(unit)) if unit[0] == "\\" else _character(unit)
        words.append(pattern)
    return _BLANK.join(words)


def _backslashes(count: int) -> str:
    """So many, or more: JSON within JSON doubles them again and again."""
    return rf"(?:\\{{{count},64}}+|(?:%(?:25)?5[Cc]){{{count}}}|(?:&#0{{0,4}}92;){{{count}}})"


def _character(char: str) -> str:
    percent = _either_case("".join(f"%{byte:02X}" for byte in char.encode()))
    point = ord(char)
    plain = [re.escape(char)]
    escape = json.dumps(char)[1:-1]
    if not char.isascii():
        # JSON's (two for what is beyond 16 bits) and Python's escapes.
        plain.append(r"\\{1,8}+".join(map(_either_case, escape.split("\\")[1:])))
        plain.append(_either_case(f"x{point:02x}" if point < 0x100 else f"U{point:08x}"))
    forms = [
        # JSON within JSON puts ever more backslashes before a quote.
        rf"\\{{0,8}}+(?:{'|'.join(plain)})",
        percent,
        percent.replace("%", "%25"),
        *({re.escape(html.escape(char))} - {re.escape(char)}),
        f"&#0{{0,4}}{point};",
        f"&#[xX]0{{0,4}}{_either_case(f'{point:x}')};",
    ]
    return f"(?:{'|'.join(forms)})"


def _base64_forms(raw: bytes) -> list[str]:
    """The characters that must stand in the Base64 of any text around `raw`, for each of the three
    places where it may begin in a group; those that mix with neighbours go along."""
    forms = []
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        first = -(-before * 8 // 6)
        last = (before + len(raw)) * 8 // 6
        core = encoded[first:last]
        signs = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:[/_]|%2[Ff]|\\{1,8}/)"}
        body = _GAP.join(signs.get(sign, sign) for sign in core)
        mixed = "[A-Za-z0-9+/_-]?"
        forms.append(f"{mixed * bool(before)}{body}{mixed}")
    return forms


def _either_case(text: str) -> str:
    return "".join(
        f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char) for char in text
    )


def _read(file: Path) -> dict[str, str]:
    try:
        require_private(file)
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file of secrets {file} cannot be read: {error}.") from error
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # The line is not quoted: it may be a secret.
            raise ConfigError(f"Line {number} of {file} has no NAME=VALUE.")
        values[name.strip()] = value
    return values
