"""What a Linux computer types on a layout: X.Org's own keymaps and compose table."""

import ctypes
import ctypes.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

_COMPOSE = Path("/usr/share/X11/locale/en_US.UTF-8/Compose")


@cache
def keymap(layout: str) -> dict[int, list[str]]:
    """Keysyms' names by X's key code (evdev), one for each of no modifier, Shift, AltGr, both."""
    if shutil.which("xkbcomp") is None:
        pytest.skip("xkbcomp is not installed (`make test-agent` installs it)")
    source = f"""xkb_keymap {{
        xkb_keycodes {{ include "evdev" }}; xkb_types {{ include "complete" }};
        xkb_compat {{ include "complete" }}; xkb_symbols {{ include "pc+{layout}+inet(evdev)" }};
    }};"""
    text = subprocess.run(
        ["xkbcomp", "-w", "0", "-xkb", "-", "-"],
        input=source, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    numbers = {name: int(code) for name, code in re.findall(r"<(\w+)> *= (\d+);", text)}
    found = {}
    for name, body in re.findall(r"key +<(\w+)> \{(.*?)\};", text, re.DOTALL):
        listed = re.search(r"symbols\[Group1\]=\s*\[([^\]]*)\]", body) or re.search(
            r"^\s*\[([^\]]*)\]", body
        )
        found[numbers[name]] = [symbol.strip() for symbol in listed[1].split(",")]
    return found


@cache
def keysym(name: str) -> int:
    """By libX11, 0 for a name that it does not know."""
    library = ctypes.util.find_library("X11")
    if library is None:
        pytest.skip("libX11 is not installed (`make test-agent` installs it)")
    x11 = ctypes.CDLL(library)
    x11.XStringToKeysym.restype = ctypes.c_ulong
    return x11.XStringToKeysym(name.encode())


def character(name: str) -> str:
    """That a keysym types by itself; empty for none."""
    number = keysym(name)
    if 0x20 <= number < 0x100:
        return chr(number)
    if number >> 24 == 1:
        return chr(number & 0xFFFFFF)
    return {"EuroSign": "€"}.get(name, "")


@cache
def compose() -> dict[tuple[str, str], str]:
    """What a dead key and the keysym after it type."""
    if not _COMPOSE.exists():
        pytest.skip("X's compose table is not installed (Debian: libx11-data)")
    pairs = re.findall(r'^<(dead_\w+)> <(\w+)>\s*:\s*"(.+?)"', _COMPOSE.read_text("utf-8"), re.M)
    return {(dead, second): char for dead, second, char in pairs}
