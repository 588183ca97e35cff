"""Which session and agent a request is of, as clients say it."""

from typing import Any

import pytest

from pagoda.server.bodies.asker import Asker, asker_of
from tests.server.conftest import RunningServer

USER = [{"role": "user", "content": "hi"}]
CHAT = ("/v1/chat/completions", {"messages": USER, "max_tokens": 2})
COMPLETION = ("/v1/completions", {"prompt": "hi", "max_tokens": 2})
RESPONSE = ("/v1/responses", {"input": "hi", "max_output_tokens": 2})
MESSAGE = ("/v1/messages", {"messages": USER, "max_tokens": 2})
OLLAMA_CHAT = ("/api/chat", {"messages": USER, "stream": False})
OLLAMA_TEXT = ("/api/generate", {"prompt": "hi", "stream": False})
ROUTES = [CHAT, COMPLETION, RESPONSE, MESSAGE, OLLAMA_CHAT, OLLAMA_TEXT]


def asked(
    server: RunningServer, route: tuple[str, dict[str, Any]], body: dict[str, Any], **headers: str
) -> Asker:
    """What the engine is told."""
    path, fields = route
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = server.http.post(path, json={"model": "fake", **fields, **body}, headers=named)
    assert reply.status_code == 200, reply.text
    request = server.client.requests[-1]
    return Asker(request.session, request.agent)


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one[0])
def test_headers_reach_the_engine(shared: RunningServer, route):
    assert asked(shared, route, {}) == Asker()
    main = asked(shared, route, {}, x_claude_code_session_id="s1")
    sub = asked(shared, route, {}, x_claude_code_session_id="s1", x_claude_code_agent_id="a1")
    assert main.session == sub.session != asked(shared, route, {}, x_session_id="s2").session
    assert main.agent is None and sub.agent is not None


@pytest.mark.parametrize("route", [CHAT, COMPLETION, RESPONSE], ids=lambda one: one[0])
def test_bodies_name_a_session(shared: RunningServer, route):
    one, two = (asked(shared, route, {"prompt_cache_key": key}) for key in ("k1", "k2"))
    assert one.session and two.session and one != two
    assert asked(shared, route, {"prompt_cache_key": "k1"}, x_session_id="s") != one


def test_messages_name_a_session_in_their_metadata(shared: RunningServer):
    one = asked(shared, MESSAGE, {"metadata": {"user_id": "user_1_session_2"}})
    assert one.session
    assert asked(shared, MESSAGE, {"metadata": {"user_id": 7}}) == Asker()


def test_names_are_opaque_and_short():
    found = asker_of({"session_id": "x" * 10_000}, "y")
    assert found.session is not None and len(found.session) == 16
    assert asker_of({"session_id": "é\udce9"}).session
    assert asker_of({"session_id": ""}, "y") == asker_of({}, "y")
