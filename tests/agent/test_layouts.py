"""The layouts' strokes, against what X.Org types with them."""

import string

import pytest

from pagoda_agent.base.errors import UntypeableError
from pagoda_agent.input.keys import KEYS
from pagoda_agent.input.layouts import LAYOUTS, Stroke, strokes
from tests.agent.fakes.usb import KERNEL_CODES_BY_NAME, X_OFFSET
from tests.agent.xkb import character, compose, keymap

PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F))
LEVELS = {(): 0, ("ShiftLeft",): 1, ("AltRight",): 2}
CONTROL = {"Return": "\n", "Tab": "\t"}


def typed(stroke: Stroke, layout: str) -> str:
    """The keysym's name."""
    return keymap(layout)[KERNEL_CODES_BY_NAME[stroke.code] + X_OFFSET][LEVELS[stroke.modifiers]]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_each_character_is_what_its_strokes_type(layout):
    wrong = {}
    for char, sequence in LAYOUTS[layout].items():
        names = [typed(stroke, layout) for stroke in sequence]
        result = compose().get(tuple(names)) if len(names) == 2 else None
        if len(names) == 1:
            result = CONTROL.get(names[0]) or character(names[0])
        if result != char:
            wrong[char] = (names, result)
    assert wrong == {}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_keys_exist(layout):
    for sequence in LAYOUTS[layout].values():
        for stroke in sequence:
            assert {stroke.code, *stroke.modifiers} <= set(KEYS)


@pytest.mark.parametrize(("layout", "lacks"), [("us", ""), ("de", ""), ("fr", "`~")])
def test_printable_ascii_is_there_or_known_to_lack(layout, lacks):
    assert "".join(sorted(set(PRINTABLE) - set(LAYOUTS[layout]))) == lacks


def test_letters_of_the_country_are_there():
    assert set("äöüÄÖÜß€é") <= set(LAYOUTS["de"])
    assert set("àâçéèêëîïôùûÂÊÎÔÛËÏ€") <= set(LAYOUTS["fr"])


def test_all_that_is_lacking_is_listed_at_once():
    with pytest.raises(UntypeableError) as caught:
        strokes("a中b€中é", "us", "nanokvm")
    assert caught.value.characters == ("中", "€", "é")
    assert "'中' (U+4E2D)" in str(caught.value) and "layout us" in str(caught.value)


def test_control_characters_cannot_be_typed():
    with pytest.raises(UntypeableError):
        strokes("a\x00\x1b", "us", "nanokvm")


def test_line_ends_are_one_enter_each():
    assert strokes("a\r\nb\rc\n", "us", "x") == [
        Stroke("KeyA"), Stroke("Enter"), Stroke("KeyB"), Stroke("Enter"), Stroke("KeyC"),
        Stroke("Enter"),
    ]  # fmt: skip


def test_a_letter_with_its_accent_behind_it_is_one_character():
    assert strokes("e\u0301", "de", "x") == strokes("é", "de", "x")
    assert strokes("é", "fr", "x") == [Stroke("Digit2")]


def test_shift_is_held_only_where_it_is_needed():
    assert strokes("aA 1!", "us", "x") == [
        Stroke("KeyA"), Stroke("KeyA", ("ShiftLeft",)), Stroke("Space"), Stroke("Digit1"),
        Stroke("Digit1", ("ShiftLeft",)),
    ]  # fmt: skip
    assert not any(stroke.modifiers for stroke in strokes(string.ascii_lowercase, "us", "x"))
