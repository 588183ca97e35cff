"""Every environment variable that the agent reads, and the folders that follow from them.

The only place that touches `os.environ`. Other programs read and keep files in the same folders.
"""

import os
from pathlib import Path

VARIABLES = {
    "PAGODA_CACHE": "Folder of Pagoda's own files; ~/.cache/pagoda.",
    "PAGODA_API_KEY": "Key that the agent sends to its model's server.",
    "PAGODA_DEBUG": "1 shows the traceback of every error.",
    "PAGODA_LANG": "Language of the command line, en or zh; that of the locale.",
    "LC_ALL": "Locale, if PAGODA_LANG is not set.",
    "LC_MESSAGES": "Locale of messages, if LC_ALL is not set.",
    "LANG": "Locale, if neither is set.",
    "NO_COLOR": "Anything: no colours in the terminal.",
    "DISPLAY": "X11 display that `--driver x11:` operates, as :0.",
    "WAYLAND_DISPLAY": "A desktop that is there, for `demo` to open a browser on.",
    "XAUTHORITY": "File with the keys to X11 displays; ~/.Xauthority.",
    "PAGODA_DRIVER_PASSWORD": "Password of the computer that `--driver` names, to keep it out of "
    "the command line.",
    "XDG_CONFIG_HOME": "Where settings live; ~/.config.",
    "XDG_CACHE_HOME": "Where caches live; ~/.cache.",
}


def get(name: str) -> str | None:
    """The variable's text; None when it is unset or empty. KeyError for an unlisted name."""
    if name not in VARIABLES:
        raise KeyError(name)
    return os.environ.get(name) or None


def everything() -> dict[str, str]:
    """All variables, for programs that are started."""
    return dict(os.environ)


def with_prefix(prefix: str) -> dict[str, str]:
    """Every variable whose name begins so, by the rest of its name; for names that users make."""
    return {
        name.removeprefix(prefix): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def cache_dir() -> Path:
    """Folder of journals and claims; not created here."""
    own = get("PAGODA_CACHE")
    return Path(own) if own else Path(get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagoda"


def config_dir() -> Path:
    """Folder of the settings; not created here."""
    return Path(get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pagoda"
