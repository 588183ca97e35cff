"""Which addresses a URL that a page named may lead to."""

import asyncio
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from pagoda.config.server import ServerConfig
from pagoda.server.errors import ApiError
from pagoda.server.http.listen import is_loopback_host
from pagoda.server.public import Resolve, is_public, resolve

RESOLVE_SECONDS = 10
_MAX_URL = 2048
# What clouds tell a machine about itself, credentials included. The usual 169.254.169.254 is
# link-local, as which it is refused anyway.
_METADATA = {ipaddress.ip_address(address) for address in ("fd00:ec2::254", "100.100.100.200")}
_SHARED_V4 = ipaddress.IPv4Network("100.64.0.0/10")
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")


@dataclass(frozen=True)
class Reach:
    """Where URLs of pages may lead: to public addresses, and with `local` to this machine and its
    private networks, too."""

    local: bool
    resolve: Resolve = resolve

    async def address(self, host: str, port: int) -> str:
        """The address to connect to; ApiError 400 where the name has none that may be reached.

        All addresses of a name must be allowed: which one answers is not ours to choose.
        """
        allowed = _is_near if self.local else is_public
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self.resolve(host, port)
        except (OSError, UnicodeError, TimeoutError):
            found = []
        # One message for all: whether a name of the network within exists is nobody's business.
        if not found or not all(map(allowed, found)):
            whose = "a public address or one of this machine" if self.local else "a public address"
            raise ApiError(
                400,
                f"The host {host[:100]!r} has no address that a page may name: it must be {whose}. "
                "Name the server in the file of --mcp-config, where any host is allowed.",
                param="server",
            )
        return found[0]


def reach_of(config: ServerConfig) -> Reach:
    """Private addresses only where none but this machine reaches the server: what it can reach
    there, its clients can anyway. Other names and a path are signs of a proxy in front."""
    alone = config.uds is not None or is_loopback_host(config.host)
    return Reach(local=alone and not config.allowed_hosts and not config.root_path)


def check_url(url: str) -> str:
    """The URL, without its fragment; ApiError 400 for one that is not http or https, or that
    carries a password."""
    fault = ""
    try:
        parts = urlsplit(url)
        port = parts.port
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            fault = "it begins with http:// or https:// and names a host"
        elif parts.username is not None or parts.password is not None:
            fault = "it carries no user name and no password; a header can"
        elif len(url) > _MAX_URL or not url.isprintable() or " " in url:
            fault = f"it has at most {_MAX_URL} characters and no spaces"
    except ValueError:
        fault = "its host or port cannot be read"
    if fault:
        raise ApiError(400, f"This is no URL of an MCP server: {fault}.", param="server")
    return url.partition("#")[0]


def _is_near(address: str) -> bool:
    """Public, of this machine, or of a private network; what is special otherwise leads nowhere
    that serves MCP."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        if mapped is not None:
            return _is_near(str(mapped))
        private = found == ipaddress.IPv6Address("::1") or found in _UNIQUE_LOCAL
    else:
        private = found.is_loopback or found in _SHARED_V4 or _is_rfc1918(found)
    return found not in _METADATA and (private or is_public(address))


def _is_rfc1918(address: ipaddress.IPv4Address) -> bool:
    networks = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    return any(address in ipaddress.IPv4Network(network) for network in networks)
