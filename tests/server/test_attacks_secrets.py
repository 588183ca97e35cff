"""What must not get out, keys and texts, and what must not get in: lines and headers of others."""

import hmac
import json
import logging
import os
import signal
import stat
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from pagoda.base.log import setup_logging
from pagoda.config.server import ServerConfig
from pagoda.engine.processes import child
from pagoda.server.http import auth
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.server.test_errors import error_of

LINE = "x\nERROR 11-21 00:00:00 [server] forged\r\x1b[31m\x85\x9b\u2028\u2029"
SECRET = "sk-5e3c7a91"


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Callable[[], str]]]:
    """Sets the real log up; what it returns tells what was written to stderr since."""
    root = logging.getLogger("pagoda")
    state = list(root.handlers), root.level, root.propagate

    def start(log_format: str) -> Callable[[], str]:
        setup_logging("debug", log_format)
        return lambda: capsys.readouterr().err

    yield start
    root.handlers[:], level, root.propagate = state
    root.setLevel(level)  # loggers below remember what holds for them


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_request_forges_a_line_of_the_log(start, log, log_format: str) -> None:
    written = log(log_format)
    config = ServerConfig(enable_log_requests=True, enable_log_outputs=True, max_log_len=1000)
    server = start(FakeClient(script=lambda request: LINE.encode()), config)
    server.chat(messages=[{"role": "user", "content": LINE}], stop=[LINE], user=LINE)
    server.chat(model=LINE, request_id=LINE, **{LINE: 1})
    server.chat(request_id="a\nb", cache_salt=LINE, chat_template_kwargs={LINE: LINE})
    server.http.get("/%0aERROR%20forged%1b%5b31m%c2%85", params={"a": LINE})
    server.http.get(
        "/v1/models", headers={b"origin": b"https://a\x85\x9b", b"x-request-id": b"\x85"}
    )
    server.http.get("/v1/models", headers={b"host": b"a\x85\x9b"})
    server.http.get("/version", headers={b"x-forwarded-for": b"1.2.3.4\x85\x9b, \x85x"})
    lines = written().splitlines()
    assert len(lines) > 8
    for line in lines:
        assert line.isprintable()
        if log_format == "json":
            assert set(json.loads(line)) == {"time", "level", "logger", "message"}
        else:
            assert line.partition(" ")[0] in ("INFO", "WARNING", "DEBUG"), line


def test_headers_of_a_reply_are_its_own(shared: RunningServer) -> None:
    evil = "x\r\nSet-Cookie: a=b"
    reply = shared.chat(request_id=evil, model=None, user=evil)
    assert reply.status_code == 200 and "\r" not in reply.json()["id"]
    assert "set-cookie" not in reply.headers
    error = shared.chat(model=evil)
    assert "set-cookie" not in error.headers and evil in error_of(error, 404)["message"]
    raw = shared.exchange(
        b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"X-Request-Id: a\rSet-Cookie: a=b\r\n\r\n"
    )
    assert b"set-cookie" not in raw.lower()


@pytest.mark.parametrize("sent", [b"a\xc2\x85b", b"a\x9bb", b"\xff" * 10, b"x" * 1000, b""])
def test_request_ids_are_echoed_as_far_as_they_are_harmless(
    shared: RunningServer, sent: bytes
) -> None:
    reply = shared.http.get("/version", headers={b"x-request-id": sent})
    echoed = dict(reply.headers.raw)[b"X-Request-Id"].decode("latin-1")
    assert echoed.isprintable() and 0 < len(echoed) <= 128


def test_no_text_in_the_log_unless_asked(start, log) -> None:
    written = log("text")
    server = start(FakeClient(script=lambda request: b"private reply"), ServerConfig())
    loud = start(FakeClient(), ServerConfig(enable_log_requests=True))
    for each in (server, loud):
        body = {"messages": [{"role": "user", "content": "private prompt"}]}
        each.chat(**body)
        each.chat(**body, stream=True)
        each.post("/v1/completions", prompt="private prompt", temperature=-1)
        each.post("/v1/completions", prompt=["private prompt", 5])
        each.post("/v1/completions", prompt="private prompt" * 1000)
    text = written()
    assert "Received request" in text and "private" not in text


def test_no_text_in_the_metrics(start) -> None:
    tools = [{"type": "function", "function": {"name": "private_tool"}}]
    server = start(FakeClient(script=lambda request: b"private reply"))
    server.chat(messages=[{"role": "user", "content": "private prompt"}], tools=tools)
    server.chat(model="private-model", user="private-user", request_id="private-id")
    server.http.get("/private/path", params={"q": "private"}, headers={"x-request-id": "private"})
    server.http.request("PRIVATE", "/version")
    assert "private" not in server.http.get("/metrics").text.lower()


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_no_key_in_the_log(launch, how: str) -> None:
    flags = ["--log-level=debug", "--enable-log-requests", "--enable-log-outputs"]
    given: dict[str, Any] = {"environment": {"PAGODA_API_KEY": SECRET}}
    if how == "flag":
        flags, given = [*flags, f"--api-key={SECRET}"], {}
    served = launch(*flags, **given)
    served.wait_ready()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for headers, status in (
        ({"authorization": f"Bearer {SECRET}"}, 200), ({"x-api-key": SECRET}, 200),
        ({"authorization": f"Bearer {SECRET}x"}, 401), ({"authorization": f"Basic {SECRET}"}, 401),
        ({"cookie": f"key={SECRET}"}, 401), ({"x-other": SECRET}, 401),
    ):  # fmt: skip
        reply = httpx.post(
            f"{served.url}/v1/chat/completions", json=body, headers=headers,
            params={"api_key": SECRET},
        )  # fmt: skip
        assert reply.status_code == status
        assert SECRET not in reply.text
    broken = httpx.post(
        f"{served.url}/v1/chat/completions", json={"messages": 5}, headers={"x-api-key": SECRET}
    )
    assert broken.status_code == 400 and SECRET not in broken.text
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    assert served.log.count("/v1/chat/completions") >= 7 and SECRET not in served.log


def test_keys_are_compared_in_constant_time(start, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, whichever matches, and as digests of one length."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def spy(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return real(first, second)

    monkeypatch.setattr(auth.hmac, "compare_digest", spy)
    server = start(FakeClient(), ServerConfig(api_key=("one", "a-longer-key", "3")))
    for key, status in (("one", 200), ("3", 200), ("on", 401), ("", 401), ("ö" * 99, 401)):
        compared.clear()
        headers = {"authorization": f"Bearer {key}".strip().encode()}
        assert server.http.get("/v1/models", headers=headers).status_code == status
        assert len(compared) == 6  # Authorization and x-api-key, with each of three
        assert {len(digest) for pair in compared for digest in pair} == {32}


def test_the_engines_sockets_are_in_a_private_folder() -> None:
    before = os.umask(0)
    try:
        folder = child.private_folder()
    finally:
        os.umask(before)
    try:
        status = folder.stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == os.getuid()
    finally:
        folder.rmdir()
