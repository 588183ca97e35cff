"""A page that the user's browser shows must not use the server of this machine."""

import json
import re
import socket
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from pagoda.server.http.webguard import WebGuardMiddleware, allowed_hosts
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.server.test_errors import error_of

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
PAGE = "https://evil.example"
EXTENSION = "chrome-extension://jfgfiigpkhlkbnfnbobbkinehhfdhndo"


@pytest.fixture
def open_server(start):
    """The config of a server that the network reaches; the test's own listens here alone."""
    return start(FakeClient(), ServerConfig(host="0.0.0.0"))


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LocalHost.", "127.0.0.1", "127.0.0.1:1", "[::1]:8000",
     "page.localhost:3000", "192.168.1.5:8000", "[fe80::1]", socket.gethostname()],
)  # fmt: skip
def test_own_names_and_addresses(shared: RunningServer, host: str) -> None:
    assert shared.http.get("/version", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example",
     "evillocalhost", "."],
)  # fmt: skip
def test_a_rebound_name_is_refused(shared: RunningServer, host: str) -> None:
    before = len(shared.client.requests)
    headers = {"host": host.encode("latin-1"), "origin": f"http://{host}".encode("latin-1")}
    error = error_of(shared.http.post(CHAT, json=BODY, headers=headers), 403)
    assert error["type"] == "PermissionDeniedError"
    assert "--allowed-hosts" in error["message"]
    error_of(shared.http.get("/metrics", headers={"host": headers["host"]}), 403)
    assert len(shared.client.requests) == before


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:80@evil.example", "localhost/?", "[evil.example]", "[::1]evil",
     "localhost:8000:evil", "127.0.0.1 evil", "lоcalhost".encode().decode("latin-1")],
)  # fmt: skip
def test_what_is_no_host_is_refused(shared: RunningServer, host: str) -> None:
    reply = shared.http.get("/metrics", headers={"host": host.encode("latin-1")})
    assert "The Host is no name" in error_of(reply)["message"]
    assert reply.headers["connection"] == "close"


def test_allowed_hosts(start) -> None:
    server = start(FakeClient(), ServerConfig(allowed_hosts=("LLM.example",)))
    for host, status in (
        ("llm.example:443", 200), ("localhost", 200), ("other.example", 403), ("a.llm.example", 403)
    ):  # fmt: skip
        assert server.http.get("/version", headers={"host": host}).status_code == status


def test_any_host_where_the_flag_says_so(start) -> None:
    server = start(FakeClient(), ServerConfig(allowed_hosts=("*",)))
    assert server.http.get("/version", headers={"host": "evil.example"}).status_code == 200


def test_an_open_server_has_any_name(open_server) -> None:
    assert open_server.http.get("/version", headers={"host": "llm.example"}).status_code == 200


def test_names_of_an_open_server_can_be_fixed(start) -> None:
    server = start(FakeClient(), ServerConfig(host="0.0.0.0", allowed_hosts=("llm.example",)))
    for host, status in (("llm.example", 200), ("evil.example", 403)):
        assert server.http.get("/version", headers={"host": host}).status_code == status


def test_a_request_without_host(shared: RunningServer) -> None:
    assert b"200 OK" in shared.exchange(b"GET /version HTTP/1.0\r\n\r\n")
    assert b" 400 " in shared.exchange(b"GET /version HTTP/1.1\r\n\r\n")
    twice = b"GET /version HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 400 " in shared.exchange(twice)


@pytest.mark.parametrize(
    "headers",
    [{"origin": PAGE}, {"origin": "null"}, {"origin": "http://localhost:1"}, {"origin": "http://["},
     {"sec-fetch-site": "cross-site"}, {"origin": PAGE, "sec-fetch-site": "cross-site"},
     {"origin": "http://localhost:1", "sec-fetch-site": "same-site"}],
)  # fmt: skip
def test_foreign_pages_change_nothing(shared: RunningServer, headers: dict[str, str]) -> None:
    before = len(shared.client.requests)
    error = error_of(shared.http.post(CHAT, json=BODY, headers=headers), 403)
    if "origin" in headers:
        assert f"--allowed-origins {headers['origin']}`" in error["message"]
    assert len(shared.client.requests) == before


def test_foreign_pages_of_an_open_server(open_server) -> None:
    error_of(open_server.http.post(CHAT, json=BODY, headers={"origin": PAGE}), 403)
    assert not open_server.client.requests


def test_foreign_pages_cannot_read(shared: RunningServer) -> None:
    reply = shared.http.get("/v1/models", headers={"origin": PAGE})
    assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize(
    ("headers", "passes"),
    [({"host": "localhost:8000", "origin": "http://localhost:8000"}, True),
     ({"host": "localhost:8000", "origin": PAGE}, False),
     ({"host": "evil.example", "origin": "http://evil.example"}, False)],
)  # fmt: skip
async def test_websockets_are_guarded_too(headers: dict[str, str], passes: bool) -> None:
    """Browsers ask nobody before they open one to another origin."""
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    guard = WebGuardMiddleware(app, hosts=allowed_hosts(ServerConfig()), origins=())
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await guard({"type": "websocket", "headers": raw}, None, send)
    assert bool(reached) is passes
    assert sent == ([] if passes else [{"type": "websocket.close", "code": 1008}])


def test_own_pages_and_programs(shared: RunningServer) -> None:
    for headers in (
        {},
        {"origin": shared.url},
        {"origin": shared.url, "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        # A proxy that names the server as it reaches it, not as the browser does.
        {"origin": "https://chat.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-mode": "cors"},  # fetch of Node.js
    ):
        assert shared.http.post(CHAT, json=BODY, headers=headers).status_code == 200


def test_a_blocked_origin_is_logged_once(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient())
    with caplog.at_level("WARNING", "pagoda.server.http.webguard"):
        for _ in range(3):
            server.http.get("/v1/models", headers={"origin": PAGE})
            server.http.post(CHAT, json=BODY, headers={"origin": PAGE})
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"`--allowed-origins {PAGE}` would let them" in line


def test_blocked_origins_do_not_fill_the_log(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient())
    with caplog.at_level("WARNING", "pagoda.server.http.webguard"):
        for number in range(100):
            origin = f"https://{number}.example/" + "x" * 1000
            server.http.get("/version", headers={"origin": origin})
    assert 1 < len(caplog.records) < 50
    assert all(len(record.getMessage()) < 600 for record in caplog.records)


def preflight(server: RunningServer, origin: str, **headers: str):
    asked = {"origin": origin, "access-control-request-method": "POST", **headers}
    return server.http.options(CHAT, headers=asked)


def test_a_preflight_of_a_blocked_origin_names_the_flag(shared: RunningServer) -> None:
    error = error_of(preflight(shared, EXTENSION), 403)
    assert f"--allowed-origins {EXTENSION}" in error["message"]


def test_a_browser_extension(start) -> None:
    """As Page Assist goes about it: preflight, models, chat."""
    server = start(FakeClient(), ServerConfig(allowed_origins=(EXTENSION,), api_key=("k",)))
    asked = {
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
        "access-control-request-private-network": "true",
    }
    reply = preflight(server, EXTENSION, **asked)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == EXTENSION
    assert "x-stainless-os" in reply.headers["access-control-allow-headers"]
    assert reply.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in reply.headers
    headers = {"origin": EXTENSION, "authorization": "Bearer k", "sec-fetch-site": "cross-site"}
    for reply in (
        server.http.get("/v1/models", headers=headers),
        server.http.post(CHAT, json=BODY, headers=headers),
    ):
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == EXTENSION
    refused = server.http.post(CHAT, json=BODY, headers={**headers, "authorization": "Bearer x"})
    # With the header a page can read why.
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, EXTENSION)
    error_of(preflight(server, PAGE), 403)


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:3000", "http://127.0.0.1:1", "https://[::1]:5"]
)
def test_pages_of_this_machine(start, origin: str) -> None:
    server = start(FakeClient(), ServerConfig(allowed_origins=("localhost",)))
    assert preflight(server, origin).headers["access-control-allow-origin"] == origin
    reply = server.http.post(CHAT, json=BODY, headers={"origin": origin})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize(
    "origin",
    ["http://localhost.evil.example", "http://notlocalhost", "http://127.0.0.1.evil.example",
     "http://evil.example/?http://localhost", "null", "http://localhost:1\u0663"],
)  # fmt: skip
def test_pages_that_only_look_like_those_of_this_machine(start, origin: str) -> None:
    server = start(FakeClient(), ServerConfig(allowed_origins=("localhost",)))
    sent = {"origin": origin.encode()}
    error_of(server.http.post(CHAT, json=BODY, headers=sent), 403)
    error_of(server.http.options(CHAT, headers=sent), 403)


def test_every_origin(start) -> None:
    server = start(FakeClient(), ServerConfig(allowed_origins=("*",)))
    assert preflight(server, PAGE).headers["access-control-allow-origin"] == "*"
    reply = server.http.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")


def test_methods_headers_and_credentials(start) -> None:
    config = ServerConfig(
        allowed_origins=(PAGE,), allowed_methods=("GET",), allowed_headers=("x-a",),
        allow_credentials=True,
    )  # fmt: skip
    server = start(FakeClient(), config)
    assert preflight(server, PAGE).status_code == 400
    asked = {"access-control-request-method": "GET", "access-control-request-headers": "x-a"}
    reply = preflight(server, PAGE, **asked)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-credentials"] == "true"
    reply = preflight(server, PAGE, **{**asked, "access-control-request-headers": "x-b"})
    assert reply.status_code == 400


FORM = "multipart/form-data"


def routes_with_bodies(server: RunningServer, *, forms: bool) -> list[str]:
    """Those that take forms with files, or all others."""
    paths = server.http.get("/openapi.json").json()["paths"]
    bodies = {path: methods.get("post", {}).get("requestBody") for path, methods in paths.items()}
    return [path for path, body in bodies.items() if body and (FORM in body["content"]) == forms]


def test_simple_requests_reach_no_route(shared: RunningServer) -> None:
    """A form or a text/plain body needs no preflight; browsers send no other kind without one.
    They say of a form where it comes from, which a terminal does not."""
    routes = routes_with_bodies(shared, forms=False)
    assert CHAT in routes and len(routes) > 5
    own = f"{shared.url}/"
    for path in routes:
        for kind, page in (
            ("text/plain", {}),
            ("multipart/form-data", {}),
            ("application/x-www-form-urlencoded", {"origin": shared.url}),
            ("application/x-www-form-urlencoded", {"referer": own}),
            ("application/x-www-form-urlencoded", {"sec-fetch-site": "none"}),
            ("", {"origin": shared.url}),
        ):
            headers = {"content-type": kind, **page}
            reply = shared.http.post(path, content=json.dumps(BODY), headers=headers)
            assert reply.status_code in (400, 415), (path, kind)
            # What the route takes instead: JSON, or a PDF, which no page sends unasked either.
            assert re.search("application/(json|pdf)", str(reply.json()["error"])), path


def test_forms_with_files_come_from_no_other_page(shared: RunningServer) -> None:
    """Browsers send these without a preflight, and say whose page it is."""
    routes = routes_with_bodies(shared, forms=True)
    assert "/v1/audio/transcriptions" in routes
    for path in routes:
        for page in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            reply = shared.http.post(path, files={"file": ("a.wav", b"RIFF")}, headers=page)
            assert reply.status_code == 403, (path, page)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json", ""):
            reply = shared.http.post(path, content=b"file=a", headers={"content-type": kind})
            assert reply.status_code == 400 and FORM in str(reply.json()["error"]), (path, kind)
