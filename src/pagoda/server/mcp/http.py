"""HTTP to MCP servers: pinned to the address that was checked, and bounded.

Imports the HTTP library of the MCP SDK, so nothing imports this before a server is used.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from ssl import SSLContext

import httpx2

from pagoda.server.mcp.addresses import Reach
from pagoda.server.mcp.limits import CALL_SECONDS, MAX_REPLY_BYTES, MAX_VALUES, values_in

_CONNECT_SECONDS = 15.0


def http_client(
    headers: Mapping[str, str],
    reach: Reach | None,
    known: SSLContext,
    answered: Callable[[int], None],
) -> httpx2.AsyncClient:
    """A client for one server; `reach` None is for a URL that the user wrote into the file.
    `answered` is told the status of each answer to a message.

    Neither proxies nor credentials of the environment: they would open other ways.
    """
    return httpx2.AsyncClient(
        transport=BoundedTransport(reach, httpx2.AsyncHTTPTransport(verify=known), answered),
        headers={**headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=CALL_SECONDS),
        trust_env=False,
    )


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Looks a host up once and stays with that address, reads so many bytes and values of a reply
    and no more, and unpacks nothing."""

    def __init__(
        self,
        reach: Reach | None,
        inner: httpx2.AsyncBaseTransport,
        answered: Callable[[int], None] = lambda status: None,
    ):
        self._reach = reach
        self._inner = inner
        self._answered = answered
        self._addresses: dict[tuple[str, int], str] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(await self._pinned(request))
        if request.method == "POST":
            self._answered(response.status_code)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            # A few bytes can hold gigabytes.
            raise httpx2.ReadError("The server compresses its reply, which it was asked not to.")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)
        return response

    async def _pinned(self, request: httpx2.Request) -> httpx2.Request:
        if self._reach is None:
            return request
        url = request.url
        host = url.raw_host.decode("ascii")
        key = (host, url.port or (443 if url.scheme == "https" else 80))
        if key not in self._addresses:
            self._addresses[key] = await self._reach.address(*key)
        return httpx2.Request(
            request.method,
            url.copy_with(host=self._addresses[key]),
            headers=request.headers,  # the Host that was asked for among them
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream):
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = values = 0
        async for chunk in self._inner:
            read += len(chunk)
            values += values_in(chunk)
            if read > MAX_REPLY_BYTES or values > MAX_VALUES:
                raise httpx2.ReadError("The server's reply is too large.")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
