"""Pictures as a way in: what may be fetched for a request and what may not (SSRF), and pictures
that are no more than an attempt. No test reaches a network."""

import asyncio
import base64
import socket
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from pagoda.base.errors import RequestError
from pagoda.server import fetch
from pagoda.server.fetch import MediaFetcher
from tests.server.fakes import REPLY
from tests.server.seeing import Serve, part, seeing, url
from tests.server.test_errors import error_of

PUBLIC = "93.184.215.14"
Answer = Callable[[httpx.Request], httpx.Response]


def fetcher(
    answer: Answer, addresses: dict[str, list[str]] | None = None, domains: tuple[str, ...] = ()
) -> MediaFetcher:
    known = {"images.example": [PUBLIC], **(addresses or {})}

    async def resolve(host: str, port: int) -> list[str]:
        if host not in known:
            raise OSError
        return known[host]

    return MediaFetcher(
        ("images.example", *domains), 1000, resolve=resolve, transport=httpx.MockTransport(answer)
    )


def arrived(body: bytes) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(body))


def never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.url} was fetched")


async def test_the_connection_goes_to_the_address_that_was_checked():
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return arrived(b"picture")

    url = "https://Images.Example/a.png?x=1"
    assert await fetcher(answer).fetch(url) == b"picture"
    (request,) = seen
    assert request.url.host == PUBLIC and request.url.path == "/a.png"
    assert request.headers["host"] == "images.example"
    assert request.extensions["sni_hostname"] == "images.example"
    assert "authorization" not in request.headers and "cookie" not in request.headers


@pytest.mark.parametrize(
    "url",
    ["http://other.example/x", "http://images.example.evil/x", "http://evil-images.example/x",
     "http://images.example@evil.example/x", "http://user:pass@images.example/x",
     "http://127.0.0.1/x", "http://[::1]/x", "http://0x7f000001/x", "http://localhost/x",
     "file:///etc/passwd", "ftp://images.example/x", "gopher://images.example/", "//images.example",
     "http://", "http:///x", "http://images.example\\@evil.example/", "http://images.example:bad/",
     "\0", "http://evil.example#@images.example/", "data"],
)  # fmt: skip
async def test_other_hosts_and_schemes_are_refused(url: str):
    with pytest.raises(RequestError):
        await fetcher(never).fetch(url)


async def test_nothing_is_allowed_by_default():
    with pytest.raises(RequestError, match="--allowed-media-domains"):
        await MediaFetcher((), 1000, transport=httpx.MockTransport(never)).fetch(
            "http://images.example/x"
        )


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.8", "192.168.1.1", "172.16.5.4", "169.254.169.254", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1",
     "::ffff:127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"],
)  # fmt: skip
async def test_addresses_inside_are_refused(address: str):
    """Also where an allowed name points to them, alone or among others."""
    for found in ([address], [PUBLIC, address]):
        with pytest.raises(RequestError, match="own network"):
            await fetcher(never, {"images.example": found}).fetch("http://images.example/x")


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1/", "http://other.example/", "file:///etc/passwd", "//other/x"]
)
async def test_redirects_are_checked_as_the_first_url(target: str):
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"location": target})

    with pytest.raises(RequestError):
        await fetcher(answer).fetch("http://images.example/x")


async def test_redirects_between_allowed_hosts_are_followed():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["host"] == "images.example":
            return httpx.Response(301, headers={"location": "https://cdn.example/y"})
        return arrived(b"y")

    allowed = fetcher(answer, {"cdn.example": [PUBLIC]}, ("cdn.example",))
    assert await allowed.fetch("http://images.example/x") == b"y"


async def test_redirects_end():
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"location": "/again"})

    with pytest.raises(RequestError, match="more than 3 redirects"):
        await fetcher(answer).fetch("http://images.example/x")


async def test_large_slow_and_wrong_answers(monkeypatch: pytest.MonkeyPatch):
    def large(request: httpx.Request) -> httpx.Response:
        return arrived(b"x" * 1001)

    with pytest.raises(RequestError, match="more than"):
        await fetcher(large).fetch("http://images.example/x")
    with pytest.raises(RequestError, match="status 404"):
        await fetcher(lambda request: httpx.Response(404)).fetch("http://images.example/x")
    with pytest.raises(RequestError, match="not known here"):
        await fetcher(never, domains=("gone.example",)).fetch("http://gone.example/x")

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(RequestError, match="could not be fetched"):
        await fetcher(broken).fetch("http://images.example/x")

    async def slow(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        return httpx.Response(200)

    monkeypatch.setattr(fetch, "MAX_SECONDS", 0.05)
    with pytest.raises(RequestError, match="did not arrive"):
        await fetcher(slow).fetch("http://images.example/x")


@pytest.fixture
def serve(start: Serve) -> Serve:
    return partial(seeing, start)


def user(*parts: dict) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("allowed", [False, True])
def test_no_connection_reaches_this_machine(serve: Serve, host: str, allowed: bool) -> None:
    """Not even where the operator names it: the flag is for hosts of pictures."""
    server = serve(allowed_media_domains=(host,) if allowed else ())
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        target = f"http://{host}:{inside.getsockname()[1]}/x.png"
        error = error_of(server.chat(messages=user(part(target))))
        assert ("own network" if allowed else "not fetched from") in error["message"]
        with pytest.raises(BlockingIOError):
            inside.accept()


def bomb() -> str:
    """A PNG of 900 bytes that says it has 32768 x 32768 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 1 << 15, 1 << 15, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * (1 << 20))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_bombs_are_refused_before_they_go_off(serve: Serve) -> None:
    server = serve()
    error = error_of(server.chat(messages=user(*[part(bomb())] * 20)))
    assert "more than 67,108,864 pixels" in error["message"]


def test_broken_pictures_harm_nobody_else(serve: Serve) -> None:
    server = serve()
    broken = [url()[:length] for length in range(30, len(url()) - 8, 4)]
    with ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(server.chat, messages=user(part(target))) for target in broken]
        good = [pool.submit(server.chat, messages=user(part(url()))) for _ in range(8)]
    # The last bytes of a PNG are missed by nobody.
    assert {reply.result().status_code for reply in bad} == {200, 400}
    for reply in good:
        assert reply.result().json()["choices"][0]["message"]["content"] == REPLY
