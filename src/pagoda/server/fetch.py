"""Fetching what a request names by URL: from hosts that the operator allowed, and no further."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence

import httpx

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes

MAX_REDIRECTS = 3
MAX_SECONDS = 15.0

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host and port; OSError where there are none."""


async def resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class MediaFetcher:
    """Each hop of a redirect is checked as the first, and the connection goes to the address that
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
        # Neither proxies nor credentials of the environment: they would open other ways.
        async with httpx.AsyncClient(transport=self._transport, trust_env=False) as client:
            for _ in range(1 + MAX_REDIRECTS):
                target = self._checked(url)
                request = await self._request(client, target)
                response = await client.send(request, stream=True)
                try:
                    if not response.has_redirect_location:
                        return await self._body(response, url)
                    url = str(target.join(response.headers["location"]))
                finally:
                    await response.aclose()
        raise RequestError(f"{_shown(url)} is behind more than {MAX_REDIRECTS} redirects.")

    def _checked(self, url: str) -> httpx.URL:
        try:
            target = httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            raise RequestError(f"{_shown(url)} is no URL.") from None
        if target.scheme not in ("http", "https") or not target.host or target.userinfo:
            raise RequestError(
                f"{_shown(url)} can't be fetched: URLs of images and videos begin with http://, "
                "https:// or data:, and carry no password."
            )
        if target.host.lower().rstrip(".") not in self._domains:
            raise RequestError(
                f"Media are not fetched from {target.host[:100]!r}. Send them as data URLs, "
                "or start the server with --allowed-media-domains."
            )
        return target

    async def _request(self, client: httpx.AsyncClient, target: httpx.URL) -> httpx.Request:
        port = target.port or (443 if target.scheme == "https" else 80)
        try:
            addresses = await self._resolve(target.host, port)
        except OSError:
            raise RequestError(f"The host {target.host[:100]!r} is not known here.") from None
        if not addresses or not all(map(_is_public, addresses)):
            raise RequestError(
                f"The host {target.host[:100]!r} is within this machine's own network; media are "
                "fetched from public addresses only."
            )
        return client.build_request(
            "GET",
            target.copy_with(host=addresses[0]),
            headers={"host": target.netloc.decode("ascii"), "accept": "image/*, video/*"},
            timeout=MAX_SECONDS,
            extensions={"sni_hostname": target.host},
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


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # Ways of writing an IPv4 address, which is what counts then.
        inner = found.ipv4_mapped or found.sixtofour
        if found.teredo is not None:
            inner = found.teredo[1]
        elif found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
    return found.is_global and not found.is_multicast


def _shown(url: str) -> str:
    return repr(url[:100] + ("..." if len(url) > 100 else ""))
