"""Fetching what a request names by URL: from public addresses, and from no others."""

import asyncio
from collections.abc import Collection
from functools import cache
from ssl import SSLContext

import httpx

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes
from pagoda.config.engine import NO_DOMAIN
from pagoda.config.modality import MODALITIES
from pagoda.server.public import Resolve, is_public, resolve
from pagoda.version import __version__

MAX_REDIRECTS = 3
MAX_SECONDS = 15.0


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
                f"{_shown(url)} can't be fetched: URLs of media begin with http://, "
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


def _shown(url: str) -> str:
    return repr(url[:100] + ("..." if len(url) > 100 else ""))
