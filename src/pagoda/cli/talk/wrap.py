"""Lines that end between words, of text that comes in pieces."""

from collections.abc import Callable

from prompt_toolkit.utils import get_cwidth

_TAB = 8
# More of a line is not looked at: what it is, its beginning tells.
_PREFIX = 64
_FENCES = ("```", "~~~")
# Behind a wide character a line may end, but not in front of one of these.
_CLOSING = frozenset("、。，．：；？！）］｝〉》」』】〕〗”’…—～")  # these it is about


class WordWrap:
    """Breaks lines of `columns()` in front of the word that would not fit; 0 or less: none.

    The word that is being written is held back until it has ended, for nobody knows its length. A
    wide character (Chinese, Japanese, Korean, most emoji) is a word. Fenced code and tables stay as
    they are, as does a word that is longer than a line.
    """

    def __init__(self, columns: Callable[[], int]):
        self._columns = columns
        self._fence = ""
        """What opened the code that is being written."""
        self._begin_line()

    def feed(self, text: str) -> str:
        """What to write now."""
        columns = self._columns()
        return "".join(self._take(char, columns) for char in text)

    def finish(self) -> str:
        """The rest; what is fed then begins a line of a text of its own."""
        rest = self._place(self._columns())
        self._fence = ""
        self._begin_line()
        return rest

    def _begin_line(self) -> None:
        self._line = ""
        """The beginning of the text's own line, not of the screen's."""
        self._column = 0
        self._word, self._width = "", 0
        self._overlong = False
        """The end of the last word is yet to come: it is longer than a line."""
        self._broken = False
        """Nothing is written on the screen's line, which begins in the middle of the text's."""

    def _take(self, char: str, columns: int) -> str:
        if char == "\n":
            return self._end_line(columns)
        if len(self._line) < _PREFIX:
            self._line += char
        if columns <= 0 or self._stays():
            held, self._word, self._width = self._word, "", 0
            return held + char
        if char in " \t":
            return self._place(columns) + self._space(char, columns)
        if self._overlong:
            self._column = (self._column + get_cwidth(char)) % columns
            return char
        return self._add(char, columns)

    def _stays(self) -> bool:
        begin = self._line.lstrip()
        return bool(self._fence) or begin.startswith(("|", *_FENCES))

    def _end_line(self, columns: int) -> str:
        line = self._line.strip()
        if self._fence:
            if line.startswith(self._fence) and not line.strip(self._fence[0]):
                self._fence = ""
        elif line.startswith(_FENCES):
            self._fence = line[: len(line) - len(line.lstrip(line[0]))]
        out = self._place(columns) + "\n"
        self._begin_line()
        return out

    def _space(self, char: str, columns: int) -> str:
        self._overlong = False
        if self._broken:
            return ""
        width = _TAB - self._column % _TAB if char == "\t" else 1
        if self._column + width > columns:
            self._column, self._broken = 0, True
            return "\n"
        self._column += width
        return char

    def _add(self, char: str, columns: int) -> str:
        width, out = get_cwidth(char), ""
        after_wide = bool(self._word) and get_cwidth(self._word[0]) > 1
        if self._word and width and char not in _CLOSING and (width > 1 or after_wide):
            out = self._place(columns)
        self._word += char
        self._width += width
        if self._width > columns:
            out += self._place(columns)
            self._overlong = True
        return out

    def _place(self, columns: int) -> str:
        """The word that was held back, on the next line where it does not fit on this one."""
        word, width = self._word, self._width
        self._word, self._width = "", 0
        if not word:
            return ""
        fits = columns <= 0 or not self._column or self._column + width <= columns
        self._column = width if not fits else self._column + width
        self._broken = False
        if columns > 0 and self._column > columns:
            self._column %= columns
        return word if fits else f"\n{word}"
