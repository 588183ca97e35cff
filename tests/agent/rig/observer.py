"""What the X server itself says of pointer and keyboard, through libX11: no code of the drivers."""

import ctypes
import ctypes.util
from typing import NamedTuple

BUTTON_MASKS = {0x100: "left", 0x200: "middle", 0x400: "right"}


class Pointer(NamedTuple):
    x: int
    y: int
    buttons: frozenset[str]
    """Of left, middle and right; the protocol has no bits for the others."""


class Observer:
    """A connection of its own to a display, used by one thread."""

    def __init__(self, display: str):
        self._x11 = ctypes.CDLL(ctypes.util.find_library("X11"))
        self._x11.XOpenDisplay.restype = ctypes.c_void_p
        self._x11.XKeysymToKeycode.restype = ctypes.c_ubyte
        self._x11.XKeysymToString.restype = ctypes.c_char_p
        for name in ("XDefaultRootWindow", "XInternAtom"):
            getattr(self._x11, name).restype = ctypes.c_ulong
        self._display = ctypes.c_void_p(self._x11.XOpenDisplay(display.encode()))
        if not self._display:
            raise RuntimeError(f"The observer cannot open display {display}.")
        self._root = ctypes.c_ulong(self._x11.XDefaultRootWindow(self._display))

    def close(self) -> None:
        self._x11.XCloseDisplay(self._display)

    def stop_repeating(self) -> None:
        """Keys that are held type once. The server repeats them after 0.66 s, and on a busy machine
        press and release may be further apart than that."""
        self._x11.XAutoRepeatOff(self._display)
        self._x11.XSync(self._display, 0)

    def pointer(self) -> Pointer:
        window = ctypes.c_ulong()
        x, y, mask = ctypes.c_int(), ctypes.c_int(), ctypes.c_uint()
        skip = ctypes.c_int()
        self._x11.XQueryPointer(
            self._display, self._root, ctypes.byref(window), ctypes.byref(window),
            ctypes.byref(x), ctypes.byref(y), ctypes.byref(skip), ctypes.byref(skip),
            ctypes.byref(mask),
        )  # fmt: skip
        held = frozenset(name for bit, name in BUTTON_MASKS.items() if mask.value & bit)
        return Pointer(x.value, y.value, held)

    def keys_down(self) -> frozenset[int]:
        """Keycodes that are held."""
        bits = ctypes.create_string_buffer(32)
        self._x11.XQueryKeymap(self._display, bits)
        return frozenset(code for code in range(256) if bits.raw[code // 8] >> code % 8 & 1)

    def keycode_of(self, keysym: int) -> int:
        """The key that made this keysym when it was asked for the first time; 0 for none."""
        return self._x11.XKeysymToKeycode(self._display, ctypes.c_ulong(keysym))

    def keysym_name(self, keysym: int) -> str:
        return self._x11.XKeysymToString(ctypes.c_ulong(keysym)).decode()

    def root_has(self, property_name: str) -> bool:
        """Whether the root window has a property, as one that a window manager sets."""
        atom = self._x11.XInternAtom(self._display, property_name.encode(), 0)
        kind, items, left = ctypes.c_ulong(), ctypes.c_ulong(), ctypes.c_ulong()
        width, data = ctypes.c_int(), ctypes.c_void_p()
        self._x11.XGetWindowProperty(
            self._display, self._root, ctypes.c_ulong(atom), ctypes.c_long(0), ctypes.c_long(1),
            0, ctypes.c_ulong(0), ctypes.byref(kind), ctypes.byref(width), ctypes.byref(items),
            ctypes.byref(left), ctypes.byref(data),
        )  # fmt: skip
        if data:
            self._x11.XFree(data)
        return kind.value != 0
