"""The listening socket, taken before anything slow happens."""

import errno
import ipaddress
import socket

from pagoda_agent.base.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. ConfigError says what is in the way."""
    try:
        family, *_, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(_advice(host, port, error)) from error
    # Without it a kept-alive connection waits 40 ms (the peer's delayed ACK) between head and body.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _advice(host: str, port: int, error: OSError | OverflowError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; choose another with --port."
    if number == errno.EACCES:
        return f"Port {port} may not be opened by this user; choose one above 1023 with --port."
    return f"Cannot listen on {host} port {port}: {error}. Check --host and --port."
