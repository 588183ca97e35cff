"""Each key's name, keysym and usage, against tables of others."""

from Xlib import XK

from pagoda_agent.input.keys import KEYS
from tests.agent.fakes.usb import KERNEL_CODES, KERNEL_CODES_BY_NAME, X_OFFSET
from tests.agent.xkb import keymap

# HID Usage Tables, keyboard page, as the KVMs' firmware uses them.
USAGES = {
    "KeyA": 0x04, "KeyM": 0x10, "KeyZ": 0x1D, "Digit1": 0x1E, "Digit9": 0x26, "Digit0": 0x27,
    "Enter": 0x28, "Escape": 0x29, "Backspace": 0x2A, "Tab": 0x2B, "Space": 0x2C, "F1": 0x3A,
    "F12": 0x45, "Insert": 0x49, "Home": 0x4A, "PageUp": 0x4B, "Delete": 0x4C, "End": 0x4D,
    "PageDown": 0x4E, "ArrowRight": 0x4F, "ArrowLeft": 0x50, "ArrowDown": 0x51, "ArrowUp": 0x52,
}  # fmt: skip
MODIFIERS = {
    "ControlLeft": 1, "ShiftLeft": 2, "AltLeft": 4, "MetaLeft": 8,
    "ControlRight": 16, "ShiftRight": 32, "AltRight": 64, "MetaRight": 128,
}  # fmt: skip
# Where X's name is not the code itself, nor follows from it by `x_name`.
X_NAMES = {
    "Enter": "Return", "Backspace": "BackSpace", "Space": "space", "Minus": "minus",
    "Equal": "equal", "BracketLeft": "bracketleft", "BracketRight": "bracketright",
    "Backslash": "backslash", "Semicolon": "semicolon", "Quote": "apostrophe",
    "Backquote": "grave", "Comma": "comma", "Period": "period", "Slash": "slash",
    "CapsLock": "Caps_Lock", "PrintScreen": "Print", "ScrollLock": "Scroll_Lock",
    "PageUp": "Page_Up", "PageDown": "Page_Down", "NumLock": "Num_Lock", "IntlBackslash": "less",
    "ContextMenu": "Menu", "ControlLeft": "Control_L", "ControlRight": "Control_R",
    "ShiftLeft": "Shift_L", "ShiftRight": "Shift_R", "AltLeft": "Alt_L", "AltRight": "Alt_R",
    "MetaLeft": "Super_L", "MetaRight": "Super_R",
}  # fmt: skip


def x_name(code: str) -> str:
    if code in X_NAMES:
        return X_NAMES[code]
    for prefix, short in (("Numpad", "KP_"), ("Arrow", ""), ("Digit", "")):
        if code.startswith(prefix):
            return short + code.removeprefix(prefix)
    return code.removeprefix("Key").lower() if code.startswith("Key") else code


def test_keysyms_are_those_of_their_names_in_x():
    assert {code: key.keysym for code, key in KEYS.items()} == {
        code: XK.string_to_keysym(x_name(code)) for code in KEYS
    }


def test_usages_are_those_of_the_specification():
    assert {code: KEYS[code].usage for code in USAGES} == USAGES
    assert {code: key.modifier for code, key in KEYS.items() if key.modifier} == MODIFIERS


def test_a_kernel_finds_the_same_key_by_usage_and_by_name():
    assert {code: KERNEL_CODES[key.usage] for code, key in KEYS.items()} == {
        code: KERNEL_CODES_BY_NAME[code] for code in KEYS
    }


def test_a_usb_keyboard_types_the_keysym_on_a_computer():
    typed = keymap("us")
    different = {
        code: names
        for code, key in KEYS.items()
        if key.keysym
        not in map(XK.string_to_keysym, names := typed.get(KERNEL_CODES[key.usage] + X_OFFSET, []))
    }
    # On X the keys from F13 have no keysyms but those of laptops' keys.
    assert {code for code in different if not code.startswith("F")} == set()
    assert set(different) <= {f"F{number}" for number in range(13, 25)}


def test_no_two_keys_share_a_keysym_or_usage():
    assert len({key.keysym for key in KEYS.values()}) == len(KEYS)
    assert len({key.usage for key in KEYS.values()}) == len(KEYS)
