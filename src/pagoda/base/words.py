"""What Pagoda says to people, in their language.

A message is written in English, with named fields: `say("{free} of {total} free", free=...)`. As a
text it is English, which logs, JSON and the API's clients get; who shows it to a person asks `told`
for it. `words.zh.json` has the Chinese of each by its English, and is read when Chinese is spoken.

Errors are raised with any text. Many come from the engine's process, where all that is left of them
is English; so what they say in Chinese is found by its form, which `errors.zh.json` has.
"""

from collections.abc import Iterable, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagoda.base.forms import Forms

LANGUAGES = ("en", "zh")
CHINESE = __file__.removesuffix(".py") + ".zh.json"
CHINESE_ERRORS = CHINESE.replace("words", "errors")

_catalogue: dict[str, str] = {}
"""Empty for English."""


class Said(str):
    """A message in English that remembers how it was made; `str` of it is the text alone."""

    template: str
    fields: dict[str, Any]

    def __new__(cls, template: str, fields: dict[str, Any] | None = None) -> "Said":
        made = super().__new__(cls, template.format(**fields) if fields else template)
        made.template, made.fields = template, fields or {}
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Said, (self.template, self.fields)


class Raised(str):
    """An error's message that was not made with `say`."""


def say(template: str, /, **fields: Any) -> str:
    """A message, as a `Said`. Without fields braces stand for themselves."""
    return Said(template, fields)


def tell(template: str, /, **fields: Any) -> str:
    """`say` for what is shown at once."""
    return told(Said(template, fields))


def told(text: str) -> str:
    """The message in the language spoken, with fields that are messages themselves; what the
    catalogue does not have stays as it is."""
    if not _catalogue:
        return text
    if isinstance(text, Raised):
        return _error_forms().translated(text)
    if not isinstance(text, Said):
        return _catalogue.get(text, text)
    template = _catalogue.get(text.template, text.template)
    fields = {
        name: told(value) if isinstance(value, Said | Raised) else value
        for name, value in text.fields.items()
    }
    return template.format(**fields) if fields else template


def message_of(error: BaseException) -> str:
    """What it says, for `told`: `str` of it is the text alone."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Said) else Raised(error)


def with_commas(parts: Iterable[str]) -> str:
    """`a, b, c` of one part at least."""
    return reduce(lambda first, last: say("{first}, {last}", first=first, last=last), parts)


def with_semicolons(parts: Iterable[str]) -> str:
    """`a; b; c` of one part at least."""
    return reduce(lambda first, last: say("{first}; {last}", first=first, last=last), parts)


def in_lines(parts: Iterable[str]) -> str:
    """Each of one part at least on a line of its own."""
    return reduce(lambda first, last: say("{first}\n{last}", first=first, last=last), parts)


def with_or(parts: Iterable[str]) -> str:
    """`a or b or c` of one part at least."""
    return reduce(lambda first, last: say("{first} or {last}", first=first, last=last), parts)


def with_and(parts: Sequence[str]) -> str:
    """`a, b and c` of one part at least."""
    if len(parts) == 1:
        return parts[0]
    return say("{first} and {last}", first=with_commas(parts[:-1]), last=parts[-1])


def speak(language: str | None = None) -> None:
    """From now on in one of LANGUAGES; by default that of the environment. Raises ConfigError for a
    PAGODA_LANG that is none."""
    global _catalogue
    _catalogue = _table(CHINESE) if (language or _of_environment()) == "zh" else {}


def spoken() -> str:
    """Which of LANGUAGES."""
    return "zh" if _catalogue else "en"


def _table(path: str) -> dict[str, str]:
    import json

    with open(path, encoding="utf-8") as file:
        found: dict[str, str] = json.load(file)
    return found


@cache
def _error_forms() -> "Forms":
    from pagoda.base.forms import Forms

    said = {
        template: chinese for template, chinese in _table(CHINESE).items() if _is_sentence(template)
    }
    return Forms(said | _table(CHINESE_ERRORS))


def _is_sentence(template: str) -> bool:
    """Whether it can be told from others by its form. Flags' examples of JSON have no fields."""
    return len(template.split()) > 4 and '{"' not in template


def _of_environment() -> str:
    from pagoda.base import env

    if asked := env.get("PAGODA_LANG"):
        return str(asked)
    # Of these the first that is set decides, as everywhere.
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    locale = next((found for name in names if (found := env.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"
