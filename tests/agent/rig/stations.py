"""Computers for drivers to operate: a desktop with the target program, and a driver's URL.

A new kind of driver joins the tests of all drivers by one entry in STATIONS.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.agent.fakes import stations as fakes
from tests.agent.rig.desktop import Desktop, start_desktop, start_x11vnc
from tests.agent.rig.target import Target, start_target


@dataclass
class Station:
    name: str
    desktop: Desktop
    target: Target
    url: str
    """For `make_driver`."""


@contextmanager
def _x11(desktop: Desktop) -> Iterator[str]:
    yield f"x11://{desktop.display}"


@contextmanager
def _tigervnc(desktop: Desktop) -> Iterator[str]:
    yield f"vnc://127.0.0.1:{desktop.vnc_port}"


@contextmanager
def _x11vnc(desktop: Desktop) -> Iterator[str]:
    with start_x11vnc(desktop) as port:
        yield f"vnc://127.0.0.1:{port}"


# name: (kind of desktop, what makes it reachable and knows the URL)
STATIONS: dict[str, tuple[str, Callable[[Desktop], AbstractContextManager[str]]]] = {
    "x11": ("xvfb", _x11),
    "tigervnc": ("tigervnc", _tigervnc),
    "x11vnc": ("xvfb", _x11vnc),
    "nanokvm": ("xvfb", fakes.nanokvm),
    "pikvm": ("xvfb", fakes.pikvm),
}


@contextmanager
def start_station(name: str, folder: Path) -> Iterator[Station]:
    kind, reach = STATIONS[name]
    with (
        start_desktop(folder, kind) as desktop,
        start_target(desktop) as target,
        reach(desktop) as url,
    ):
        yield Station(name, desktop, target, url)
