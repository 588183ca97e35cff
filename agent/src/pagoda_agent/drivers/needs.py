"""What each driver needs beside the agent itself, whether it is here, and what installs it.

The one place that says it: for the command line, for the page, and for the page's install button,
which installs these packages and nothing else.
"""

import importlib
import importlib.util
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagoda_agent.base import env
from pagoda_agent.base.errors import ConfigError

_XLIB = ("python-xlib>=0.33,<1", "Xlib")
_WEBSOCKETS = ("websockets>=15,<18", "websockets")
_CRYPTOGRAPHY = ("cryptography>=44,<51", "cryptography")
EXTRAS: dict[str, tuple[tuple[str, str], ...]] = {
    "x11": (_XLIB,),
    "vnc": (_CRYPTOGRAPHY,),
    "nanokvm": (_WEBSOCKETS, _CRYPTOGRAPHY),
    "pikvm": (_WEBSOCKETS,),
}
"""Each driver's packages, (requirement, module that it brings): the extras of pyproject.toml."""
_SCHEMES = {"nanokvms": "nanokvm"}


class System(NamedTuple):
    """What an administrator installs; the agent never does."""

    why: str
    command: str


@dataclass(frozen=True)
class Lacks:
    """What is not here of what a driver needs."""

    driver: str
    packages: tuple[str, ...]
    """Requirements as pip takes them. Without them the driver does not run."""
    system: System | None
    """What may be missing of the machine; the driver runs without it, but may find no computer."""

    @property
    def sentence(self) -> str:
        names = ", ".join(_name(package) for package in self.packages)
        return f"The {self.driver} driver needs Python packages that are not here: {names}."

    @property
    def command(self) -> str:
        """What installs the packages, as it is typed."""
        return shlex.join(install_command(self.packages))


class LacksError(ConfigError):
    def __init__(self, lacks: Lacks):
        super().__init__(f"{lacks.sentence} Install them: {lacks.command}")
        self.lacks = lacks


def driver_of(url: str) -> str:
    """The extra that an address belongs to, or its scheme where none does."""
    scheme = url.partition(":")[0]
    return _SCHEMES.get(scheme, scheme)


def lacks(driver: str) -> Lacks:
    """KeyError for a driver that there is not."""
    importlib.invalidate_caches()  # something may have been installed meanwhile
    missing = tuple(
        requirement
        for requirement, module in EXTRAS[driver]
        if importlib.util.find_spec(module) is None
    )
    return Lacks(driver, missing, _display() if driver == "x11" else None)


def install_command(packages: Sequence[str]) -> list[str]:
    """The words of the command that installs them for the Python that runs this."""
    if importlib.util.find_spec("pip") is None and (uv := shutil.which("uv")):
        return [uv, "pip", "install", "--python", sys.executable, *packages]
    return [sys.executable, "-m", "pip", "install", *packages]


def _display() -> System | None:
    if env.get("DISPLAY") or any(map(shutil.which, ("Xvfb", "Xorg"))):
        return None
    return System(
        "This machine shows no X display and has no X server; Xvfb is one without a screen.",
        "sudo apt install xvfb",
    )


def _name(requirement: str) -> str:
    return requirement.partition(">")[0]
