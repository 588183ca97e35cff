"""--grammar and --json-schema: what replies follow where a request names no structure."""

from typing import Any

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.engine import ModelConfig
from pagoda.engine.served.text_side import sampling_defaults
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": "hi"}),
    ("/completion", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {**CHAT, "max_tokens": 9}),
]


def defaults(**flags: Any) -> dict[str, Any]:
    return sampling_defaults(ModelConfig(generation_config="vllm", **flags), None)


@pytest.fixture
def yes_or_no(start) -> RunningServer:
    return start(FakeClient(), defaults=defaults(grammar='root ::= "yes" | "no"'))


def last_grammar(server: RunningServer) -> str:
    return server.client.requests[-1].grammar or ""


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_replies_follow_the_servers_grammar(yes_or_no, route, body):
    assert yes_or_no.post(route, **body).status_code == 200
    assert ByteGrammars().accepts(last_grammar(yes_or_no), "yes")
    assert not ByteGrammars().accepts(last_grammar(yes_or_no), "perhaps")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "structured_outputs": {"regex": "[0-9]+"}}),
        ("/v1/completions", {"prompt": "hi", "structured_outputs": {"regex": "[0-9]+"}}),
        ("/completion", {"prompt": "hi", "json_schema": {"type": "integer"}}),
    ],
)
def test_a_requests_own_structure_wins(yes_or_no, route, body):
    assert yes_or_no.post(route, **body).status_code == 200
    assert ByteGrammars().accepts(last_grammar(yes_or_no), "17")
    assert not ByteGrammars().accepts(last_grammar(yes_or_no), "yes")


def test_plain_text_can_be_asked_for(yes_or_no):
    assert yes_or_no.chat(response_format={"type": "text"}).status_code == 200
    assert last_grammar(yes_or_no) == ""


def test_a_batch_never_goes_unheld(yes_or_no):
    reply = yes_or_no.post("/v1/chat/completions/batch", messages=[CHAT["messages"]])
    assert reply.status_code == 400
    assert "one by one" in reply.text


def test_a_schema_is_held_to(start):
    server = start(FakeClient(), defaults=defaults(json_schema='{"type": "integer"}'))
    assert server.chat().status_code == 200
    assert ByteGrammars().accepts(last_grammar(server), "17")
    assert not ByteGrammars().accepts(last_grammar(server), '"x"')


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"grammar": "root ::= ["}, "--grammar can't be enforced"),
        ({"json_schema": "{"}, "--json-schema can't be enforced"),
        ({"grammar": 'root ::= "a"', "json_schema": "{}"}, "--grammar and --json-schema"),
    ],
)
def test_what_cannot_be_enforced_is_no_server(flags, words):
    with pytest.raises(ConfigError, match=words):
        defaults(**flags)
