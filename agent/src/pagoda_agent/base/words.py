"""Words that somebody mistyped, and text that is safe to show in a terminal."""

import difflib
from collections.abc import Iterable

# A path has at most 4,096 characters and a sentence's words far fewer.
_LONGEST_WORD = 5000
_KEPT = 60


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is a misspelling or the first half of, or None."""
    words = sorted(set(known))
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.7)
    begun = [
        name for name in words if word and name.startswith(word) and 2 * len(word) >= len(name)
    ]
    return close[0] if close else min(begun, key=len, default=None)


def nearest_of(word: str, known: Iterable[str]) -> str:
    """A phrase for error messages: the nearest known name, and all known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.3)
    listed = "known: " + ", ".join(names)
    return f"the nearest known is {close[0]!r} ({listed})" if close else listed


def escaped(text: str) -> str:
    """A line break must not forge a line, nor may control characters reach the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def for_terminal(text: str) -> str:
    """Lines stay lines; a word that is longer than any path keeps its beginning."""
    return "\n".join(
        " ".join(map(_shortened, escaped(line).split(" "))) for line in text.split("\n")
    )


def _shortened(word: str) -> str:
    if len(word) <= _LONGEST_WORD:
        return word
    return f"{word[:_KEPT]}...({len(word):,} characters)...{word[-_KEPT // 6 :]}"
