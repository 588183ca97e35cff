"""Strings that may be split between two pieces of a stream."""

from collections.abc import Sequence


def held_from(text: str, needles: Sequence[str]) -> int:
    """Where the longest end of `text` begins that could still become one of `needles`.

    The length of the text if nothing could.
    """
    held = len(text)
    for needle in needles:
        start = text.find(needle[0], max(0, len(text) - len(needle) + 1), held)
        while start != -1 and not needle.startswith(text[start:]):
            start = text.find(needle[0], start + 1, held)
        if start != -1:
            held = start
    return held
