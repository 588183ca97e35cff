"""The listening socket, taken before anything slow happens."""

import errno
import ipaddress
import socket

from pagoda.base.errors import ConfigError

_BACKLOG = 2048


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


def _advice(host: str, port: int, error: OSError | OverflowError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use; choose another with --port, or end what listens "
            f"there (`pagoda stop --port {port}` if it is Pagoda)."
        )
    if number == errno.EACCES:
        return f"Port {port} may not be opened by this user; choose one above 1023 with --port."
    return f"Cannot listen on {host} port {port}: {error}. Check --host and --port."


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
