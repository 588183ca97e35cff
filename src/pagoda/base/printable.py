"""Text from files and requests, made safe to show: it can neither speak to a terminal nor flood
it."""

from collections.abc import Callable

# A path has at most 4,096 characters and a sentence's words far fewer.
_LONGEST_WORD = 5000
_KEPT = 60


def escaped(text: str, quote: Callable[[str], str] = repr) -> str:
    """A line break must not forge a line, in any of Unicode's forms, nor may control characters
    reach the terminal. `quote` writes a character as an escape in quotes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else quote(c)[1:-1] for c in text)


def for_terminal(text: str) -> str:
    """Lines stay lines; a word that is longer than any path keeps its beginning."""
    return "\n".join(_shortened(escaped(line)) for line in text.split("\n"))


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_WORD:
        return line
    return " ".join(
        word if len(word) <= _LONGEST_WORD
        else f"{word[:_KEPT]}...({len(word):,} characters)...{word[-_KEPT // 6:]}"
        for word in line.split(" ")
    )  # fmt: skip
