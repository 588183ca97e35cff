"""Fetching what a request names by URL: from public addresses, and from no others."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from ssl import SSLContext

import httpx

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes
from pagoda.config.engine import NO_DOMAIN
from pagoda.config.modality import MODALITIES
from pagoda.version import __version__

MAX_REDIRECTS = 3
MAX_SECONDS = 15.0

# IANA's registries of special-purpose addresses. What is no global unicast is refused as a whole;
# these are the parts of it that lead elsewhere: protocols and tunnels (Teredo, ORCHID, 6to4 and
# its relays, anycast to the nearest router or name server) and documentation.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
_SPECIAL_V4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
    )
]  # fmt: skip
# Addresses that stand for an IPv4 one: mapped by the system, or by a NAT64 (RFC 6052) where a
# network has IPv6 only and its DNS writes the IPv4 addresses of others like this.
_IPV4_INSIDE = [ipaddress.IPv6Network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96")]
# RFC 5214: interface ids of ISATAP end with the IPv4 address that packets are sent on to.
_ISATAP = (0x00005EFE, 0x02005EFE)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host and port; OSError where there are none."""


# Threads of their own: names whose servers are slow hold up each other, and nothing else.
_resolving = ThreadPoolExecutor(4, "resolve")


async def resolve(host: str, port: int) -> Sequence[str]:
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_resolving, ask)
    return [str(entry[4][0]) for entry in found]


class MediaFetcher:
    """Fetches from `domains` alone, or without any from every host; never from an address that is
    not public, also where a named host has it.

    Each hop of a redirect is checked as the first, and the connection goes to the address that
    was checked: a name that points elsewhere the second time gains nothing."""

    def __init__(
        self,
        domains: Collection[str],
        max_bytes: int,
        *,
        resolve: Resolve = resolve,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self._domains = {domain.lower().rstrip(".") for domain in domains}
        self._max_bytes = max_bytes
        self._resolve = resolve
        self._transport = transport

    async def fetch(self, url: str) -> bytes:
        """The body behind an http or https URL; RequestError for any that is not to be fetched, or
        cannot be."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                return await self._follow(url)
        except TimeoutError:
            raise RequestError(
                f"{_shown(url)} did not arrive within {MAX_SECONDS:g} s; send it as a data URL."
            ) from None
        except httpx.HTTPError as error:
            raise RequestError(
                f"{_shown(url)} could not be fetched ({type(error).__name__}); send it as a "
                "data URL."
            ) from None

    async def _follow(self, url: str) -> bytes:
        known = await asyncio.to_thread(certificates)
        # Neither proxies nor credentials of the environment: they would open other ways.
        async with httpx.AsyncClient(
            transport=self._transport, verify=known, trust_env=False
        ) as client:
            target = self._checked(url)
            for _ in range(1 + MAX_REDIRECTS):
                request = await self._request(client, target)
                response = await client.send(request, stream=True)
                try:
                    if not response.has_redirect_location:
                        return await self._body(response, str(target))
                    target = self._checked(response.headers["location"], target)
                finally:
                    await response.aclose()
        raise RequestError(f"{_shown(url)} is behind more than {MAX_REDIRECTS} redirects.")

    def _checked(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        try:
            target = httpx.URL(url) if base is None else base.join(url)
            host = target.host.lower().rstrip(".")
        except (httpx.InvalidURL, ValueError):
            raise RequestError(f"{_shown(url)} is no URL.") from None
        if target.scheme not in ("http", "https") or not host or target.userinfo:
            raise RequestError(
                f"{_shown(url)} can't be fetched: URLs of images and videos begin with http://, "
                "https:// or data:, and carry no password."
            )
        if NO_DOMAIN in self._domains:
            raise RequestError("This server fetches no media; send them as data URLs.")
        if self._domains and host not in self._domains:
            raise RequestError(
                f"Media are not fetched from {host[:100]!r}. Send them as data URLs, or start the "
                "server with this host among --allowed-media-domains."
            )
        return target

    async def _request(self, client: httpx.AsyncClient, target: httpx.URL) -> httpx.Request:
        host = target.raw_host.decode("ascii")
        port = target.port or (443 if target.scheme == "https" else 80)
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        # One message for both: whether a name of the network within exists is nobody's business.
        if not addresses or not all(map(is_public, addresses)):
            raise RequestError(
                f"The host {host[:100]!r} has no public address that is known here, and media are "
                "fetched from public addresses only. Send them as data URLs."
            )
        return client.build_request(
            "GET",
            target.copy_with(host=addresses[0]),
            headers={
                "host": target.netloc.decode("ascii"),
                "user-agent": f"Pagoda/{__version__}",
                "accept": ", ".join(f"{kind}/*" for kind in MODALITIES),
                "accept-encoding": "identity",
            },
            timeout=MAX_SECONDS,
            extensions={"sni_hostname": host},
        )

    async def _body(self, response: httpx.Response, url: str) -> bytes:
        if response.status_code != 200:
            raise RequestError(f"{_shown(url)} answers with status {response.status_code}.")
        body = bytearray()
        # Raw: what is compressed may be a thousand times larger than it looks.
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._max_bytes:
                raise RequestError(f"{_shown(url)} has more than {format_bytes(self._max_bytes)}.")
        return bytes(body)


@cache
def certificates() -> SSLContext:
    """Those that hosts are known by. Reading them takes tens of milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


def is_public(address: str) -> bool:
    """Whether an address is one of the public network, and stands for none that is not."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return _is_public_v4(found)
    inside = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    if any(found in part for part in _IPV4_INSIDE):
        return _is_public_v4(inside)
    if found not in _GLOBAL_UNICAST or any(found in part for part in _SPECIAL_V6):
        return False
    return int(found) >> 32 & 0xFFFFFFFF not in _ISATAP or _is_public_v4(inside)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    special = address.is_multicast or any(address in part for part in _SPECIAL_V4)
    return address.is_global and not special


def _shown(url: str) -> str:
    return repr(url[:100] + ("..." if len(url) > 100 else ""))
