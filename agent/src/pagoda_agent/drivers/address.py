"""Where a computer is, and with which password, as the URL of a driver says."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pagoda_agent.base import env
from pagoda_agent.base.errors import ConfigError
from pagoda_agent.input.layouts import LAYOUTS

_log = logging.getLogger(__name__)
_MAX_PASSWORD = 1024
_ESCAPES = (
    "A password with one of the signs / ? # @ : needs them as %2F %3F %23 %40 %3A; or put it into "
    "a file: scheme://host?password-file=PATH."
)


@dataclass(frozen=True)
class Address:
    host: str
    port: int | None
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)


def parse_address(url: str, options: Collection[str] = ()) -> Address:
    """`scheme://user:password@host:port?option=value`, each but the host optional.

    A password does not belong into a command line, where every user of the machine sees it: it may
    also be in a file, `scheme://host?password-file=PATH`, or in PAGODA_DRIVER_PASSWORD. Raises
    ConfigError without ever quoting the URL, for it may have a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its message quotes what is taken for a port, and may be a password
        raise ConfigError(
            f"The driver's URL has a host or a port that cannot be read. {_ESCAPES}"
        ) from None
    if not parts.hostname:
        raise ConfigError(
            f"The driver's URL names no host; write it like {parts.scheme}://192.168.1.7."
        )
    if parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(
            f"The driver's URL goes on after {parts.hostname}, which means nothing. {_ESCAPES}"
        )
    if parts.password:
        _log.warning(
            "The driver's URL has its password in it, which every user of this machine sees on a "
            "command line. Put it into a file, as in %s://host?password-file=PATH, or into "
            "PAGODA_DRIVER_PASSWORD.",
            parts.scheme,
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"password-file", *options}
    if unknown := set(query) - known:
        raise ConfigError(
            f"The driver's URL has the option {min(unknown)!r}; known: {', '.join(sorted(known))}."
        )
    file = query.pop("password-file", "")
    password = unquote(parts.password or "") or _password(file)
    return Address(parts.hostname, port, unquote(parts.username or ""), password, query)


def layout_of(address: Address) -> str:
    """The computer's keyboard layout, as the option `layout` names it; `us` where none does.

    Raises ConfigError for one that is not known.
    """
    layout = address.options.get("layout", "us")
    if layout not in LAYOUTS:
        raise ConfigError(
            f"There is no keyboard layout {layout!r}; known are {', '.join(LAYOUTS)}."
        )
    return layout


def place(host: str, port: int | None) -> str:
    """A host and a port in one form, so that two ways to write them are the same text."""
    host = "127.0.0.1" if host in ("localhost", "::1") else host.lower()
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def without_password(url: str) -> str:
    """A driver's URL as it may be shown."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return parts._replace(netloc=f"{user}@{host}" if user else host).geturl()


def require_private(file: Path) -> None:
    """Raises ConfigError for a file with a secret that others can read, OSError for none."""
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"{file} can be read by others; run chmod 600 {file}.")


def _password(named_file: str) -> str:
    if not named_file:
        return str(env.get("PAGODA_DRIVER_PASSWORD") or "")
    path = Path(named_file).expanduser()
    try:
        require_private(path)
        with path.open(encoding="utf-8") as file:
            return file.readline(_MAX_PASSWORD).rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"The file with the password cannot be read: {error}.") from error
