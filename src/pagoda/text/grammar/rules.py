"""Writing a grammar in llguidance's Lark: rules under names that never clash.

The dialect: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import regex_to_lark

ANYTHING = r"/(.|\n)*/"
# Text that is not wanted in such numbers is a model gone astray: an endless answer of blanks.
SPACE = r"/[ \t\r\n]{1,32}/"
_JSON: Mapping[str, Any] = {
    "whitespace_pattern": r"[ \t\r\n]{1,32}",
    # Models write what Python's json.dumps does by default.
    "json_allow_general_unicode_escapes": True,
}
_MARKS = frozenset(r"\.+*?()|[]{}^$/")


class Rules:
    """The rules of one grammar.

    `special_ids`: tokens that no text spells, by what they are written as here. An expression is
    what may stand on the right of a rule.
    """

    def __init__(self, special_ids: Mapping[str, int] | None = None):
        self._special_ids = special_ids or {}
        names = sorted(self._special_ids, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._rules: dict[str, str] = {}
        self._recursive: dict[str, str] = {}
        self._grammars: list[dict[str, str]] = []

    def rule(self, expression: str, *, lazy: bool = False, most: int | None = None) -> str:
        """The name of a rule that stands for the expression. `lazy`: a single regex that ends as
        soon as it can; `most`: one of at most so many tokens."""
        head = "[lazy]: " if lazy else ": " if most is None else f"[max_tokens={most}]: "
        return self._rules.setdefault(head + expression, f"r{len(self._rules)}")

    def recursive(self, name: str, write: Callable[[str], str]) -> str:
        """The rule `name`, whose expression may hold the rule itself."""
        if name not in self._recursive:
            self._recursive[name] = ""
            self._recursive[name] = write(name)
        return name

    def literal(self, text: str) -> str:
        """Exactly this text, its special tokens as tokens."""
        parts, at = [], 0
        for match in self._specials.finditer(text):
            parts += [_quoted(text[at : match.start()]), f"<[{self._special_ids[match[0]]}]>"]
            at = match.end()
        return " ".join(part for part in (*parts, _quoted(text[at:])) if part) or '""'

    def until(self, tag: str, most: int | None = None) -> str:
        """Any text up to the first such tag, of at most so many characters, and the tag."""
        text = r"(.|\n)*" if most is None else rf"(.|\n){{0,{most}}}"
        if self._specials.fullmatch(tag):
            return f"{self.rule(f'/{text}/')} {self.literal(tag)}"
        escaped = "".join("\\" + c if c in _MARKS else c for c in tag).replace("\n", r"\n")
        return self.rule(f"/{text}{escaped}/", lazy=True)

    def at_most(self, tokens: int, end: int) -> str:
        """Any text of at most so many tokens, and the token that ends it."""
        return f"{self.rule(ANYTHING, most=tokens)} <[{end}]>"

    def anything(self) -> str:
        """Any text, also none; no special tokens."""
        return self.rule(ANYTHING)

    def json(self, schema: Any, options: Mapping[str, Any] | None = None) -> str:
        """A value that fits a JSON schema; `options` are llguidance's x-guidance."""
        options = {**_JSON, **(options or {})}
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def regex(self, pattern: str) -> str:
        """Text that matches as a whole; \\d and \\w are ASCII's, as in JavaScript."""
        return self.rule(f"/{regex_to_lark(pattern, 'dw')}/")

    def lark(self, source: str) -> str:
        """What a grammar of its own accepts, from its rule `start`."""
        name = f"g{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": source})
        return f"@{name}"

    def start(self, expression: str) -> str:
        """The whole grammar."""
        rules = "".join(f"{name}{rule}\n" for rule, name in self._rules.items())
        rules += "".join(f"{name}: {rule}\n" for name, rule in self._recursive.items())
        source = f"start: {expression}\n{rules}"
        if not self._grammars:
            return source
        return json.dumps(
            {"grammars": [{"name": "reply", "lark_grammar": source}, *self._grammars]}
        )


def optional(expression: str) -> str:
    return f"({expression})?"


def repeated(expression: str, most: int | None = None) -> str:
    """Any number of times, or up to `most` times."""
    return f"({expression})*" if most is None else f"({expression}){{0,{most}}}"


def either(*expressions: str) -> str:
    return f"({' | '.join(expressions)})"


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
