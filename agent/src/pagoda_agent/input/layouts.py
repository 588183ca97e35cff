"""Which keys type a character, on the keyboard layout that the controlled computer is set to.

A KVM sends places of keys (`keys.KEYS`); what they type is up to the computer, and no KVM can ask.
The tables hold what Windows and X.Org agree on, so that one setting fits both: on fr, `~` and the
grave accent are dead keys on Windows and plain ones on X.Org, so they are in no table.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from unicodedata import normalize

from pagoda_agent.base.errors import UntypeableError


class Stroke(NamedTuple):
    """A key that is pressed and released while modifiers are held."""

    code: str
    modifiers: tuple[str, ...] = ()


class _Rows(NamedTuple):
    """One character per key of `_PLACES`, by what is held; a blank where none is sure."""

    plain: str
    shift: str
    altgr: str = ""
    dead: Mapping[tuple[str, str], str] = {}
    """(row's name, character as it is in the row): the combining accent that this key waits with.
    """


_PLACES = (
    "Backquote Digit1 Digit2 Digit3 Digit4 Digit5 Digit6 Digit7 Digit8 Digit9 Digit0 Minus Equal "
    "KeyQ KeyW KeyE KeyR KeyT KeyY KeyU KeyI KeyO KeyP BracketLeft BracketRight "
    "KeyA KeyS KeyD KeyF KeyG KeyH KeyJ KeyK KeyL Semicolon Quote Backslash "
    "IntlBackslash KeyZ KeyX KeyC KeyV KeyB KeyN KeyM Comma Period Slash"
)
_GRAVE, _ACUTE, _CIRCUMFLEX, _DIAERESIS = "\u0300", "\u0301", "\u0302", "\u0308"

_LAYOUTS = {
    "us": _Rows(
        "`1234567890-=" "qwertyuiop[]" "asdfghjkl;'\\" " zxcvbnm,./",
        "~!@#$%^&*()_+" "QWERTYUIOP{}" "ASDFGHJKL:\"|" " ZXCVBNM<>?",
    ),
    "de": _Rows(
        "^1234567890ß´" "qwertzuiopü+" "asdfghjklöä#" "<yxcvbnm,.-",
        "°!\"§$%&/()=?`" "QWERTZUIOPÜ*" "ASDFGHJKLÖÄ'" ">YXCVBNM;:_",
        "  ²³   {[]}\\ " "@ €        ~" "            " "|      µ   ",
        {
            ("plain", "^"): _CIRCUMFLEX,
            ("plain", "´"): _ACUTE,
            ("shift", "`"): _GRAVE,
        },
    ),
    "fr": _Rows(
        "²&é\"'(-è_çà)=" "azertyuiop^$" "qsdfghjklmù*" "<wxcvbn,;:!",
        " 1234567890°+" "AZERTYUIOP¨£" "QSDFGHJKLM%µ" ">WXCVBN?./§",
        "   #{[| \\^@]}" "  €        ¤" "            " "           ",
        {("plain", "^"): _CIRCUMFLEX, ("shift", "¨"): _DIAERESIS},
    ),
}  # fmt: skip
# What a dead key and the space bar type on both systems; the other accents differ.
_BARE = {_CIRCUMFLEX: "^", _GRAVE: "`"}
_HOLDS = {"plain": (), "shift": ("ShiftLeft",), "altgr": ("AltRight",)}


def _typed(rows: _Rows) -> Iterator[tuple[str, tuple[Stroke, ...]]]:
    """(character, its strokes), the ones to prefer last."""
    dead = {}
    single = {" ": Stroke("Space"), "\n": Stroke("Enter"), "\t": Stroke("Tab")}
    for name, held in _HOLDS.items():
        for place, char in zip(_PLACES.split(), getattr(rows, name), strict=False):
            accent = rows.dead.get((name, char))
            if accent:
                dead[accent] = Stroke(place, held)
            elif char != " ":
                single.setdefault(char, Stroke(place, held))
    for accent, stroke in dead.items():
        if accent in _BARE:
            yield _BARE[accent], (stroke, single[" "])
        # Vowels only: systems differ on the others (ŵ, ź).
        for letter in "aeiouAEIOU":
            composed = normalize("NFC", letter + accent)
            yield composed, (stroke, single[letter])
    for char, stroke in single.items():
        yield char, (stroke,)


LAYOUTS: dict[str, dict[str, tuple[Stroke, ...]]] = {
    name: dict(_typed(rows)) for name, rows in _LAYOUTS.items()
}


def strokes(text: str, layout: str, driver: str) -> list[Stroke]:
    """The strokes that type the text, a dead key and its letter as two.

    Raises UntypeableError, naming all characters that the layout lacks. Line ends of any kind are
    Enter; accents that follow their letter (NFD) count as part of it.
    """
    text = normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    table = LAYOUTS[layout]
    missing = [char for char in text if char not in table]
    if missing:
        raise UntypeableError(missing, f"{driver} (layout {layout})")
    return [stroke for char in text for stroke in table[char]]
