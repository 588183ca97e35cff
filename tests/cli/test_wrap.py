"""Lines of a reply end between words, however the text comes."""

import io
import random
import textwrap

import pytest
from prompt_toolkit.utils import get_cwidth

from pagoda.cli.talk.reply import ReplyPrinter
from pagoda.cli.talk.source import Piece
from pagoda.cli.talk.wrap import WordWrap

WORDS = "a an the word wrapped naïve don't Straße e\u0301tude — (in brackets), end."


def wrapped(text: str, columns: int, cuts: random.Random | None = None) -> str:
    wrap, out = WordWrap(lambda: columns), ""
    while text:
        length = cuts.randint(1, 7) if cuts else len(text)
        out, text = out + wrap.feed(text[:length]), text[length:]
    return out + wrap.finish()


def lines_of(text: str) -> list[str]:
    return [line.rstrip(" ") for line in text.split("\n")]


@pytest.mark.parametrize("columns", [12, 20, 37, 80])
def test_words_stay_whole(columns):
    """The standard library breaks a whole text at the same places."""
    rng = random.Random(columns)
    words = [word for word in WORDS.split() if "\u0301" not in word]  # it counts characters
    text = " ".join(rng.choices(words, k=300))
    assert lines_of(wrapped(text, columns, rng)) == textwrap.wrap(
        text, columns, break_on_hyphens=False, break_long_words=False
    )


@pytest.mark.parametrize("columns", [10, 24, 80])
def test_no_line_is_wider_than_the_screen_and_nothing_is_lost(columns):
    rng = random.Random(7 * columns)
    narrow = [f"{word} " for word in (*WORDS.split(), "x" * 9)]
    parts = [*narrow, "你好", "，", "漢字かな", "。", "한국어", "😀", "\n", "\n\n"]
    for _ in range(50):
        text = "".join(rng.choice(parts) + rng.choice(["", " ", "  "]) for _ in range(80))
        out = wrapped(text, columns, rng)
        assert out == wrapped(text, columns), "the pieces make a difference"
        assert all(get_cwidth(line.rstrip(" ")) <= columns for line in out.split("\n"))
        # What was added are line breaks, and what went are spaces at them.
        assert out.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_wide_characters_break_anywhere_but_not_before_a_full_stop():
    assert wrapped("你好世界，再见", 8) == "你好世\n界，再见"
    assert wrapped("ab你好cd", 5) == "ab你\n好cd"
    assert wrapped("你好。", 5) == "你\n好。"


def test_a_word_is_shown_when_it_has_ended():
    wrap = WordWrap(lambda: 20)
    assert wrap.feed("Hel") == "" and wrap.feed("lo wor") == "Hello "
    assert wrap.feed("ld") == "" and wrap.feed("\n") == "world\n"
    assert wrap.feed("last") == "" and wrap.finish() == "last"
    # A wide character is seen as soon as the next one is there.
    assert wrap.feed("你") == "" and wrap.feed("好") == "你" and wrap.finish() == "好"


def test_what_is_longer_than_a_line_is_left_to_the_terminal():
    url = "https://example.com/" + "path/" * 10
    for cuts in (None, random.Random(3)):
        assert wrapped(f"see {url} there", 20, cuts) == f"see \n{url} there"
        assert wrapped(url, 20, cuts) == url
    # Of 70 columns the last line has ten, and the next word fits behind them.
    assert wrapped(f"{url} {'y' * 9}", 20) == f"{url} {'y' * 9}"
    assert wrapped(f"{url} {'y' * 10}", 20) == f"{url} \n{'y' * 10}"


CODE = "```python\nif a:  # a comment that is longer than the line\n    ``` no end\n```\n"
TABLE = "| a column with words | another with more |\n|---|---|\n  | 1 | 2 3 4 5 6 7 8 9 |\n"


@pytest.mark.parametrize(
    "kept", [CODE, TABLE, "~~~~\n~~~ is inside of it, as it is shorter\n~~~~\n"]
)
def test_code_and_tables_are_left_alone(kept):
    rng = random.Random(1)
    for text in (kept, f"\n{kept}"):
        assert wrapped(text, 16, rng) == text
    behind = wrapped(f"{kept}three words behind it", 16, rng)
    assert behind == f"{kept}three words \nbehind it"


@pytest.mark.parametrize("columns", [0, -1])
def test_without_a_width_nothing_is_changed(columns):
    text = "some words  and\tmore\n" * 20
    assert wrapped(text, columns, random.Random(0)) == text


def test_the_width_may_change():
    columns = [10]
    wrap = WordWrap(lambda: columns[0])
    assert wrap.feed("one two three ") == "one two \nthree "
    columns[0] = 40
    assert wrap.feed("four five six\n") == "four five six\n"
    columns[0] = 0
    assert wrap.feed("x" * 99) + wrap.finish() == "x" * 99


def test_thought_and_answer_begin_lines_of_their_own():
    out = io.StringIO()
    printer = ReplyPrinter(out, color=False, wrap=WordWrap(lambda: 11))
    printer.feed(Piece("reasoning", "a long thought"))
    printer.feed(Piece("text", "an answer"))
    printer.feed(Piece("text", " in words"))
    printer.finish()
    assert out.getvalue() == "a long \nthought\n\nan answer \nin words\n"
    printer.feed(Piece("text", "again"))
    printer.finish()
    assert out.getvalue().endswith("words\nagain\n")
