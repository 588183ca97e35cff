"""Keys by one name each, and what X11, VNC and USB call them.

The names are those of KeyboardEvent.code (W3C UI Events): they mean places on a keyboard, not
characters. Keysyms are X11's (keysymdef.h) for the US layout without Shift; usages are of page 7
of the USB HID usage tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from pagoda_agent.base.errors import ActionError
from pagoda_agent.base.near import nearest


@dataclass(frozen=True)
class KeyCode:
    code: str
    keysym: int
    usage: int
    modifier: int = 0
    """Its bit in the first byte of a USB keyboard's report; 0 for other keys."""


# code: (keysym, usage)
_PLAIN = {
    "Enter": (0xFF0D, 0x28), "Escape": (0xFF1B, 0x29), "Backspace": (0xFF08, 0x2A),
    "Tab": (0xFF09, 0x2B), "Space": (0x20, 0x2C), "Minus": (0x2D, 0x2D), "Equal": (0x3D, 0x2E),
    "BracketLeft": (0x5B, 0x2F), "BracketRight": (0x5D, 0x30), "Backslash": (0x5C, 0x31),
    "Semicolon": (0x3B, 0x33), "Quote": (0x27, 0x34), "Backquote": (0x60, 0x35),
    "Comma": (0x2C, 0x36), "Period": (0x2E, 0x37), "Slash": (0x2F, 0x38),
    "CapsLock": (0xFFE5, 0x39), "PrintScreen": (0xFF61, 0x46), "ScrollLock": (0xFF14, 0x47),
    "Pause": (0xFF13, 0x48), "Insert": (0xFF63, 0x49), "Home": (0xFF50, 0x4A),
    "PageUp": (0xFF55, 0x4B), "Delete": (0xFFFF, 0x4C), "End": (0xFF57, 0x4D),
    "PageDown": (0xFF56, 0x4E), "ArrowRight": (0xFF53, 0x4F), "ArrowLeft": (0xFF51, 0x50),
    "ArrowDown": (0xFF54, 0x51), "ArrowUp": (0xFF52, 0x52), "NumLock": (0xFF7F, 0x53),
    "NumpadDivide": (0xFFAF, 0x54), "NumpadMultiply": (0xFFAA, 0x55),
    "NumpadSubtract": (0xFFAD, 0x56), "NumpadAdd": (0xFFAB, 0x57), "NumpadEnter": (0xFF8D, 0x58),
    "NumpadDecimal": (0xFFAE, 0x63), "IntlBackslash": (0x3C, 0x64), "ContextMenu": (0xFF67, 0x65),
}  # fmt: skip
_MODIFIERS = {
    "ControlLeft": (0xFFE3, 0xE0), "ShiftLeft": (0xFFE1, 0xE1), "AltLeft": (0xFFE9, 0xE2),
    "MetaLeft": (0xFFEB, 0xE3), "ControlRight": (0xFFE4, 0xE4), "ShiftRight": (0xFFE2, 0xE5),
    "AltRight": (0xFFEA, 0xE6), "MetaRight": (0xFFEC, 0xE7),
}  # fmt: skip


def _all_keys() -> Iterator[KeyCode]:
    for index, letter in enumerate(ascii_uppercase):
        yield KeyCode(f"Key{letter}", ord(letter.lower()), 0x04 + index)
    for digit in range(10):
        # USB counts 1 to 9, then 0, on the rows of both parts of the keyboard.
        place = (digit - 1) % 10
        yield KeyCode(f"Digit{digit}", ord("0") + digit, 0x1E + place)
        yield KeyCode(f"Numpad{digit}", 0xFFB0 + digit, 0x59 + place)
    for number in range(1, 13):
        yield KeyCode(f"F{number}", 0xFFBD + number, 0x39 + number)
    for number in range(13, 25):
        yield KeyCode(f"F{number}", 0xFFBD + number, 0x5B + number)
    for code, (keysym, usage) in _PLAIN.items():
        yield KeyCode(code, keysym, usage)
    for code, (keysym, usage) in _MODIFIERS.items():
        yield KeyCode(code, keysym, usage, modifier=1 << (usage - 0xE0))


KEYS = {key.code: key for key in _all_keys()}

# What models and people write, in lower case and without blanks, hyphens and underscores.
_ALIASES = {
    "ctrl": "ControlLeft", "control": "ControlLeft", "ctl": "ControlLeft",
    "controll": "ControlLeft", "ctrll": "ControlLeft", "lctrl": "ControlLeft",
    "leftctrl": "ControlLeft", "controlr": "ControlRight", "ctrlr": "ControlRight",
    "rctrl": "ControlRight", "rightctrl": "ControlRight",
    "shift": "ShiftLeft", "shiftl": "ShiftLeft", "lshift": "ShiftLeft", "leftshift": "ShiftLeft",
    "shiftr": "ShiftRight", "rshift": "ShiftRight", "rightshift": "ShiftRight",
    "alt": "AltLeft", "altl": "AltLeft", "lalt": "AltLeft", "leftalt": "AltLeft",
    "option": "AltLeft", "altr": "AltRight", "ralt": "AltRight", "rightalt": "AltRight",
    "altgr": "AltRight", "isolevel3shift": "AltRight",
    "meta": "MetaLeft", "super": "MetaLeft", "superl": "MetaLeft", "win": "MetaLeft",
    "windows": "MetaLeft", "cmd": "MetaLeft", "command": "MetaLeft", "metal": "MetaLeft",
    "lmeta": "MetaLeft", "winleft": "MetaLeft", "superr": "MetaRight", "metar": "MetaRight",
    "winright": "MetaRight", "rmeta": "MetaRight",
    "return": "Enter", "linefeed": "Enter", "esc": "Escape", "bksp": "Backspace",
    "back": "Backspace", "del": "Delete", "ins": "Insert", "pgup": "PageUp", "prior": "PageUp",
    "pgdn": "PageDown", "pgdown": "PageDown", "next": "PageDown", "up": "ArrowUp",
    "uparrow": "ArrowUp", "down": "ArrowDown", "downarrow": "ArrowDown", "left": "ArrowLeft",
    "leftarrow": "ArrowLeft", "right": "ArrowRight", "rightarrow": "ArrowRight",
    "spacebar": "Space", "menu": "ContextMenu", "apps": "ContextMenu", "print": "PrintScreen",
    "prtsc": "PrintScreen", "prtscn": "PrintScreen", "sysrq": "PrintScreen",
    "printscrn": "PrintScreen", "break": "Pause", "caps": "CapsLock",
    "dash": "Minus", "hyphen": "Minus", "equals": "Equal",
    "bracketleft": "BracketLeft", "bracketright": "BracketRight", "apostrophe": "Quote",
    "grave": "Backquote", "dot": "Period", "slash": "Slash", "kpenter": "NumpadEnter",
    "kpadd": "NumpadAdd", "kpsubtract": "NumpadSubtract", "kpmultiply": "NumpadMultiply",
    "kpdivide": "NumpadDivide", "kpdecimal": "NumpadDecimal",
    "-": "Minus", "=": "Equal", "[": "BracketLeft", "]": "BracketRight", "\\": "Backslash",
    ";": "Semicolon", "'": "Quote", "`": "Backquote", ",": "Comma", ".": "Period", "/": "Slash",
    " ": "Space",
}  # fmt: skip
# Signs that need Shift on the US layout, by the sign of their key without it.
_SHIFTED = {
    shifted: _ALIASES.get(plain) or f"Digit{plain}"
    for shifted, plain in zip('!@#$%^&*()_+{}|:"~<>?', "1234567890-=[]\\;'`,./", strict=True)
}
SHIFTED = {code: ord(sign) for sign, code in _SHIFTED.items()} | {
    f"Key{letter}": ord(letter) for letter in ascii_uppercase
}
"""Keysyms of the US layout with Shift, by code; keys that are not here ignore it."""
_NAMES = (
    {code.lower(): code for code in KEYS}
    | {code.removeprefix("Key").lower(): code for code in KEYS if code.startswith("Key")}
    | {code.removeprefix("Digit"): code for code in KEYS if code.startswith("Digit")}
    | {f"kp{digit}": f"Numpad{digit}" for digit in range(10)}
    | _ALIASES
)


def codes_of(name: str) -> tuple[str, ...]:
    """The codes of a key as a model or a person names it: `ctrl`, `Return`, `KeyA`, `a`, `?`.

    More than one where it takes Shift. Raises ActionError with the nearest known name.
    """
    if name in _SHIFTED:
        return ("ShiftLeft", _SHIFTED[name])
    if name == "+":  # a chord's own sign, when it stands alone
        return ("ShiftLeft", "Equal")
    plain = name if len(name) == 1 else "".join(char for char in name if char not in " _-")
    code = _NAMES.get(plain.lower())
    if code is None:
        close = nearest(plain.lower(), _NAMES)
        hint = f"; did you mean {close!r}?" if close else "."
        raise ActionError(f"There is no key {name[:40]!r}{hint}")
    return (code,)


def chord(keys: str | Sequence[str]) -> tuple[str, ...]:
    """The codes of `ctrl+shift+t`, `ctrl c`, `["ctrl", "c"]` or `["ctrl+c"]`, modifiers first.

    Raises ActionError for a key that is not known, or none.
    """
    names = [name for part in ([keys] if isinstance(keys, str) else keys) for name in _split(part)]
    if not names:
        raise ActionError("There are no keys to press.")
    codes = dict.fromkeys(code for name in names for code in codes_of(name))
    return tuple(sorted(codes, key=lambda code: not KEYS[code].modifier))


def _split(text: str) -> list[str]:
    """At `+` and blanks; a name of one sign stays whole, and so does the plus in `ctrl++`."""
    if len(text) == 1:
        return [text]
    names = []
    for word in text.split():
        if word.endswith("+") and word != "+":
            names += [*filter(None, word[:-1].rstrip("+").split("+")), "+"]
        else:
            names += filter(None, word.split("+")) if word != "+" else ["+"]
    return names


def keysym_of(char: str) -> int:
    """The X11 keysym that types one character; control characters other than newline, tab, escape
    and backspace have none (0)."""
    special = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}
    point = ord(char)
    if char in special:
        return special[char]
    if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF:
        return point
    return 0x01000000 | point if point >= 0x100 else 0
