"""Columns of a terminal: Chinese characters take two."""

import re
import textwrap
from collections.abc import Container, Iterable, Sequence

_WIDE = frozenset("WF")
# Neither a line's first nor its last character in Chinese.
_NOT_FIRST, _NOT_LAST = "，。；：、？！）》」』】”’…", "（《「『【“‘"
# A wide character with the marks that stay with it: a line may end behind each.
_PIECE = (
    rf"[{_NOT_LAST}]*(?:[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60]|[^\u2e80-\u9fff\uf900-\ufaff"
    rf"\uff00-\uff60{_NOT_FIRST}{_NOT_LAST}]+)[{_NOT_FIRST}]*|[{_NOT_FIRST}{_NOT_LAST}]+"
)


def columns(text: str) -> int:
    """How many columns a line takes; control characters and marks that combine are not expected."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(each) in _WIDE else 1 for each in text)


def left(text: str, width: int) -> str:
    """Padded to so many columns, as `str.ljust` does."""
    return text + " " * (width - columns(text))


def right(text: str, width: int) -> str:
    """Padded to so many columns, as `str.rjust` does."""
    return " " * (width - columns(text)) + text


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: Container[int]) -> list[str]:
    """Lines of a table. The columns with these numbers are texts; the others, numbers, stand to
    the right."""
    cells = [head, *rows]
    widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            left(cell, width) if index in texts else right(cell, width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


class _Piece(str):
    """As long as it is wide, for textwrap, which counts by `len`."""

    def __len__(self) -> int:
        return columns(str.__str__(self))


class _Wrapper(textwrap.TextWrapper):
    def _split(self, text: str) -> list[str]:
        chunks = super()._split(text)
        if text.isascii():
            return chunks
        return [_Piece(piece) for chunk in chunks for piece in _pieces(chunk)]


def _pieces(chunk: str) -> list[str]:
    return [chunk] if chunk.isascii() else re.findall(_PIECE, chunk)


def wrap(text: str, width: int, indent: str = "", later: str = "") -> list[str]:
    """Lines of at most so many columns unless a single word is wider; `indent` stands before the
    first and `later` before the others. Words stay whole: they may be there to be copied."""
    wrapper = _Wrapper(
        width, initial_indent=indent, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return wrapper.wrap(text)
