"""What a Linux computer makes of USB keyboards: key codes of its kernel (linux/input-event-codes.h)
by usage (the table in drivers/hid/hid-input.c) and by KeyboardEvent.code. X adds 8 to each.

Written from those tables, so that a mistake in the drivers' own cannot hide.
"""

X_OFFSET = 8

_LETTERS = (30, 48, 46, 32, 18, 33, 34, 35, 23, 36, 37, 38, 50, 49, 24, 25, 16, 19, 31, 20, 22, 47,
            17, 45, 21, 44)  # fmt: skip
_FROM_1E = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11,  # 1 to 0
            28, 1, 14, 15, 57, 12, 13, 26, 27, 43, 43, 39, 40, 41, 51, 52, 53, 58,
            59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 87, 88,  # F1 to F12
            99, 70, 119, 110, 102, 104, 111, 107, 109, 106, 105, 108, 103,
            69, 98, 55, 74, 78, 96, 79, 80, 81, 75, 76, 77, 71, 72, 73, 82, 83,  # number pad
            86, 127, 116, 117,
            183, 184, 185, 186, 187, 188, 189, 190, 191, 192, 193, 194)  # fmt: skip
_FROM_E0 = (29, 42, 56, 125, 97, 54, 100, 126)

KERNEL_CODES = (
    dict(enumerate(_LETTERS, start=0x04))
    | dict(enumerate(_FROM_1E, start=0x1E))
    | dict(enumerate(_FROM_E0, start=0xE0))
)
"""By usage."""

# First code of each run of keys that follow each other, as on a keyboard's rows.
_RUNS = {
    1: "Escape Digit1 Digit2 Digit3 Digit4 Digit5 Digit6 Digit7 Digit8 Digit9 Digit0 Minus Equal "
    "Backspace Tab KeyQ KeyW KeyE KeyR KeyT KeyY KeyU KeyI KeyO KeyP BracketLeft BracketRight "
    "Enter ControlLeft KeyA KeyS KeyD KeyF KeyG KeyH KeyJ KeyK KeyL Semicolon Quote Backquote "
    "ShiftLeft Backslash KeyZ KeyX KeyC KeyV KeyB KeyN KeyM Comma Period Slash ShiftRight "
    "NumpadMultiply AltLeft Space CapsLock F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 NumLock ScrollLock "
    "Numpad7 Numpad8 Numpad9 NumpadSubtract Numpad4 Numpad5 Numpad6 NumpadAdd Numpad1 Numpad2 "
    "Numpad3 Numpad0 NumpadDecimal",
    86: "IntlBackslash F11 F12",
    96: "NumpadEnter ControlRight NumpadDivide PrintScreen AltRight",
    102: "Home ArrowUp PageUp ArrowLeft ArrowRight End ArrowDown PageDown Insert Delete",
    119: "Pause",
    125: "MetaLeft MetaRight ContextMenu",
    183: "F13 F14 F15 F16 F17 F18 F19 F20 F21 F22 F23 F24",
}
KERNEL_CODES_BY_NAME = {
    name: code for first, names in _RUNS.items() for code, name in enumerate(names.split(), first)
}
