"""Drivers by the scheme of their URL: `--driver vnc://host:5900`."""

import re
from pkgutil import resolve_name

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.base.near import nearest_of
from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.needs import LacksError, driver_of, lacks

# Each is a function of the URL (with its user, password and query) that makes a driver, not open
# yet, and raises ConfigError for a URL that it cannot use.
DRIVERS = {
    "x11": "pagoda_agent.drivers.x11.driver:make",
    "vnc": "pagoda_agent.drivers.vnc.driver:make",
    "nanokvm": "pagoda_agent.drivers.nanokvm.driver:make",
    "nanokvms": "pagoda_agent.drivers.nanokvm.driver:make",
    "pikvm": "pagoda_agent.drivers.pikvm:make",
}
# What other programs call a VNC server or an X display: `192.168.1.7:5900`, `box:1`, `:1`.
_PLACE = re.compile(r"[\w.-]*:\d+(\.\d+)?")


def make_driver(url: str) -> Driver:
    """The driver for `x11:` (the display in DISPLAY) or `x11://:1`, `vnc://:password@host:5900`,
    `nanokvm://admin@host`, `nanokvms://...` (https), `pikvm://admin:password@host`.

    Raises ConfigError for a scheme or a URL that is not known, and LacksError for a driver whose
    packages are not installed.
    """
    scheme = url.partition(":")[0]
    if scheme not in DRIVERS:
        hint = nearest_of(scheme, DRIVERS)
        if _PLACE.fullmatch(url):
            hint = f"write vnc://{url} for a VNC server" if scheme else f"write x11://{url}"
        raise ConfigError(f"There is no driver {scheme!r}; {hint}.")
    if (missing := lacks(driver_of(url))).packages:
        raise LacksError(missing)
    driver: Driver = resolve_name(DRIVERS[scheme])(url)
    return driver
