"""The listening socket, taken before anything slow happens."""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.config.server import ServerConfig

_BACKLOG = 2048
_PRIVATE = 0o177
"""The umask of a socket that only its user may connect to (0600)."""


@contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """The socket that the flags name. ConfigError says what is in the way."""
    if config.uds is None:
        with listen(config.host, config.port) as listener:
            yield listener
        return
    with listen_unix(config.uds) as listener:
        try:
            yield listener
        finally:
            Path(config.uds).unlink(missing_ok=True)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. ConfigError says what is in the way.

    Who connects early waits in the backlog instead of being refused.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(_advice(host, port, error)) from error
    # Connections inherit it. asyncio sets it only where a socket names its protocol, and without
    # it a kept-alive connection waits 40 ms (the peer's delayed ACK) between headers and body.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_unix(path: str) -> socket.socket:
    """A unix socket of mode 0600; its folder is made, of mode 0700, if there is none."""
    file = Path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(file)
        before = os.umask(_PRIVATE)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"Cannot listen on {path}: {error}. Check --uds.") from error
    except ConfigError:
        listener.close()
        raise
    return listener


def _remove_stale(file: Path) -> None:
    """What a server left behind that had no time to clean up."""
    if not os.path.lexists(file):
        return
    if not stat.S_ISSOCK(file.lstat().st_mode):
        raise ConfigError(f"{file} is no socket; name another path with --uds, or remove it.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(file)) == 0:
            raise ConfigError(f"A server listens on {file}; name another path with --uds.")
    file.unlink()


def _advice(host: str, port: int, error: OSError | OverflowError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return say(
            "Port {port} on {host} is in use; choose another with --port, or end what listens "
            "there (`pagoda stop --port {port}` if it is Pagoda).",
            port=port,
            host=host,
        )
    if number == errno.EACCES:
        return say(
            "Port {port} may not be opened by this user; choose one above 1023 with --port.",
            port=port,
        )
    return say(
        "Cannot listen on {host} port {port}: {error}. Check --host and --port.",
        host=host,
        port=port,
        error=getattr(error, "strerror", None) or error,
    )


def base_url(listener: socket.socket, scheme: str = "http") -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def is_loopback_host(host: str) -> bool:
    """Whether `listen` on it is for this machine alone."""
    try:
        found = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False
    return ipaddress.ip_address(found[0][4][0]).is_loopback
