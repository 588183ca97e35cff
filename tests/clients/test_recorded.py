"""Requests as gateways and browser extensions send them, byte for byte what matters of them."""

import json

import httpx

from pagoda.config.server import ServerConfig
from tests.server.fakes import REPLY, FakeClient

EXTENSION = "chrome-extension://jfgfiigpkhlkbnfnbobbkinehhfdhndo"


def events(reply: httpx.Response) -> list[dict]:
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_one_api_tests_a_channel(start):
    """Its channel test sends one small request and wants a choice and a usage."""
    server = start(FakeClient())
    reply = server.http.post(
        "/v1/chat/completions",
        headers={"Authorization": "Bearer sk-none", "Content-Type": "application/json"},
        content=b'{"messages":[{"role":"user","content":"hi"}],"model":"fake","max_tokens":16}',
    )
    assert reply.status_code == 200
    body = reply.json()
    assert body["choices"][0]["message"]["content"] and body["usage"]["total_tokens"] > 0


def test_one_api_bills_a_stream(start):
    """It asks for the usage, and reads it from the last event before [DONE]."""
    server = start(FakeClient())
    reply = server.http.post(
        "/v1/chat/completions",
        headers={"Accept": "text/event-stream", "Content-Type": "application/json"},
        content=json.dumps(
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "hi"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0.5,
                "presence_penalty": 0,
                "frequency_penalty": 0,
                "top_p": 1,
            }
        ),
    )
    told = events(reply)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in told[:-1]) == REPLY
    assert told[-1]["choices"] == [] and told[-1]["usage"]["completion_tokens"] > 0


def test_page_assist_asks_from_its_extension(start):
    """A browser asks first (OPTIONS) and shows the extension only what CORS lets it see."""
    config = ServerConfig(allowed_origins=(EXTENSION,), disable_uvicorn_access_log=True)
    server = start(FakeClient(), config)
    preflight = server.http.options(
        "/v1/chat/completions",
        headers={
            "Origin": EXTENSION,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == EXTENSION
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    origin = {"Origin": EXTENSION, "Sec-Fetch-Site": "cross-site"}
    models = server.http.get("/v1/models", headers=origin)
    assert models.headers["access-control-allow-origin"] == EXTENSION
    model = models.json()["data"][0]["id"]
    ask = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    reply = server.http.post("/v1/chat/completions", headers=origin, json=ask)
    assert reply.headers["access-control-allow-origin"] == EXTENSION
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events(reply)) == REPLY


def test_an_extension_that_nobody_named_is_refused(start):
    server = start(FakeClient())
    preflight = server.http.options(
        "/v1/chat/completions",
        headers={"Origin": EXTENSION, "Access-Control-Request-Method": "POST"},
    )
    assert "access-control-allow-origin" not in preflight.headers
