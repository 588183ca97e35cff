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
    known = {
        "images.example": [PUBLIC],
        "images.example.evil": [PUBLIC],
        "other.example": [PUBLIC],
        "localhost": ["::1", "127.0.0.1"],
        **(addresses or {}),
    }

    async def resolve(host: str, port: int) -> list[str]:
        """As the system does it, but that no server of names is asked."""
        if host in known:
            return known[host]
        flags = socket.AI_NUMERICHOST
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, flags=flags)]

    return MediaFetcher(domains, 1000, resolve=resolve, transport=httpx.MockTransport(answer))


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
    assert request.headers["accept-encoding"] == "identity"
    assert request.extensions["sni_hostname"] == "images.example"
    assert "authorization" not in request.headers and "cookie" not in request.headers


@pytest.mark.parametrize("domains", [(), ("images.example",)], ids=["all", "named"])
@pytest.mark.parametrize(
    "url",
    ["http://user:pass@images.example/x", "http://images.example@127.0.0.1/x",
     "http://127.0.0.1/x", "http://127.1/x", "http://[::1]/x", "http://0x7f000001/x",
     "http://2130706433/x", "http://localhost/x", "http://LOCALHOST./x", "http://[fe80::1%25lo]/x",
     "http://[::ffff:127.0.0.1]/x", "http://gone.example/x",
     "file:///etc/passwd", "ftp://images.example/x", "gopher://images.example/", "//images.example",
     "http://", "http:///x", "http://images.example\\@evil.example/", "http://images.example:bad/",
     "\0", "http://evil.example#@images.example/", "data", "http://a..b/x",
     f"http://{'a' * 64}.example/x", "http://xn--zzzzzz99999999.example/x", "http://./x"],
)  # fmt: skip
async def test_what_is_no_url_of_a_public_host_is_refused(url: str, domains: tuple[str, ...]):
    with pytest.raises(RequestError):
        await fetcher(never, domains=domains).fetch(url)


@pytest.mark.parametrize(
    "url",
    ["http://other.example/x", "http://images.example.evil/x", "http://evil-images.example/x",
     "http://images.example@other.example/x"],
)  # fmt: skip
async def test_named_hosts_are_the_only_ones(url: str):
    with pytest.raises(RequestError):
        await fetcher(never, domains=("images.example",)).fetch(url)


async def test_none_closes():
    for target in ("http://images.example/x", "http://none/x"):
        with pytest.raises(RequestError, match="fetches no media"):
            await fetcher(never, {"none": [PUBLIC]}, ("none",)).fetch(target)


@pytest.mark.parametrize("url", ["http://images.example/x", "https://images.example:8443/x"])
@pytest.mark.parametrize("domains", [(), ("other.example", "IMAGES.example.")])
@pytest.mark.parametrize(
    "address",
    [PUBLIC, "2606:4700::6810:84e5", "64:ff9b::5db8:d70e", "::ffff:93.184.215.14",
     "2606:4700::5efe:5db8:d70e"],
)  # fmt: skip
async def test_public_addresses_are_fetched_from(
    url: str, domains: tuple[str, ...], address: str
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return arrived(request.url.host.encode())

    allowed = fetcher(answer, {"images.example": [address]}, domains)
    assert await allowed.fetch(url) == address.encode()


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.8", "192.168.1.1", "172.16.5.4", "169.254.169.254", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1",
     "::ffff:127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1",
     "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1", "5f00::1", "100::1",
     "2001::1", "2001:db8::1", "2001:0:5db8:d70e::80ff:fffe", "3fff::1", "4000::1", "ff0e::1",
     "64:ff9b::a00:1", "192.0.2.1", "198.18.0.1", "192.88.99.1", "240.0.0.1",
     # ISATAP, 6to4 and Teredo, anycast to what is nearest.
     "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a9fe:a9fe", "2002:5db8:d70e::1",
     "2001:0:7f00:1::", "2001:4:112::1", "2620:4f:8000::1", "192.0.0.9", "192.31.196.1",
     "192.52.193.1", "192.175.48.1", "64:ff9b:1:fffe::5db8:d70e", "::5db8:d70e", "fe80::1"],
)  # fmt: skip
@pytest.mark.parametrize("domains", [(), ("images.example",)], ids=["all", "named"])
async def test_addresses_inside_are_refused(address: str, domains: tuple[str, ...]):
    """Also where a named host points to them, alone or among others."""
    for found in ([address], [PUBLIC, address]):
        with pytest.raises(RequestError, match="no public address"):
            await fetcher(never, {"images.example": found}, domains).fetch(
                "http://images.example/x"
            )


@pytest.mark.parametrize(
    ("target", "domains"),
    [("http://127.0.0.1/", ()), ("http://localhost/", ()), ("http://inside.example/", ()),
     ("file:///etc/passwd", ()), ("//inside.example/x", ()), ("\0", ()), ("http://[::1", ()),
     ("http://a..b/", ()), ("//u:p@images.example/", ()), ("//other.example", ("images.example",))],
)  # fmt: skip
async def test_redirects_are_checked_as_the_first_url(target: str, domains: tuple[str, ...]):
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["host"])
        return httpx.Response(302, headers={"location": target})

    with pytest.raises(RequestError, match=r"public|no URL|be fetched|not fetched from"):
        await fetcher(answer, {"inside.example": ["10.0.0.8"]}, domains).fetch(
            "http://images.example/x"
        )
    assert asked == ["images.example"]


async def test_a_name_that_points_elsewhere_later_is_looked_at_again():
    """DNS rebinding: the second hop goes to the same name."""
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.host == PUBLIC
        return httpx.Response(302, headers={"location": "/again"})

    with pytest.raises(RequestError, match="no public address"):
        await MediaFetcher((), 1000, resolve=resolve, transport=httpx.MockTransport(answer)).fetch(
            "http://images.example/x"
        )


@pytest.mark.parametrize("domains", [(), ("images.example", "cdn.example")])
async def test_redirects_between_allowed_hosts_are_followed(domains: tuple[str, ...]):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["host"] == "images.example":
            return httpx.Response(301, headers={"location": "https://cdn.example/y"})
        return arrived(b"y")

    allowed = fetcher(answer, {"cdn.example": [PUBLIC]}, domains)
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
    with pytest.raises(RequestError, match="no public address"):
        await fetcher(never).fetch("http://gone.example/x")

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


INSIDE = ("127.0.0.1", "localhost", "0.0.0.0")


@pytest.mark.parametrize(
    ("domains", "words"),
    [((), "no public address"), (("images.example",), "not fetched from"),
     (INSIDE, "no public address"), (("none",), "fetches no media")],
    ids=["all", "others", "named", "none"],
)  # fmt: skip
def test_no_connection_reaches_this_machine(
    serve: Serve, domains: tuple[str, ...], words: str
) -> None:
    """Not even where the operator names it: the flag is for hosts of pictures."""
    server = serve(allowed_media_domains=domains)
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        for host in INSIDE:
            target = f"http://{host}:{inside.getsockname()[1]}/x.png"
            error = error_of(server.chat(messages=user(part(target))))
            assert words in error["message"]
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
