"""/v1/responses over WebSockets."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pagoda.config.server import ServerConfig
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient

ASK: dict[str, Any] = {"type": "response.create", "model": "fake", "input": "hi", "store": False}
PATIENCE = 30


class Talk:
    """One connection to a server."""

    def __init__(self, connection: ClientConnection):
        self.connection = connection

    def say(self, **fields: Any) -> None:
        self.connection.send(json.dumps({**ASK, **fields}))

    def hear(self) -> dict[str, Any]:
        text = self.connection.recv(PATIENCE)
        assert isinstance(text, str)
        event: dict[str, Any] = json.loads(text)
        return event

    def ask(self, **fields: Any) -> list[dict[str, Any]]:
        """Events to the last one."""
        self.say(**fields)
        events = [self.hear()]
        while events[-1]["type"] not in ("error", *ENDS):
            events.append(self.hear())
        return events


ENDS = tuple(f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled"))


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Connect to a server."""
    with ExitStack() as connections:

        def open_one(server: RunningServer, **headers: str) -> Talk:
            url = server.url.replace("http", "ws", 1) + "/v1/responses"
            made = connect(url, additional_headers=headers, open_timeout=PATIENCE)
            return Talk(connections.enter_context(made))

        yield open_one


def prompts(server: RunningServer) -> list[str]:
    return [bytes(request.prompt_token_ids).decode() for request in server.client.requests]


def test_the_events_are_those_of_a_stream(start, talk) -> None:
    server = start(FakeClient())
    events = talk(server).ask()
    streamed = server.post("/v1/responses", model="fake", input="hi", store=False, stream=True)
    lines = [line for line in streamed.text.split("\n") if line.startswith("data: ")]
    names = [json.loads(line[6:])["type"] for line in lines]
    assert [event["type"] for event in events] == names
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == REPLY


def test_a_conversation_sends_what_is_new(start, talk) -> None:
    """Nothing of it is stored, and the connection knows it all the same."""
    server = start(FakeClient())
    one, other = talk(server), talk(server)
    first = one.ask(input="a")[-1]["response"]["id"]
    second = one.ask(input="b", previous_response_id=first)[-1]["response"]["id"]
    one.ask(input="c", previous_response_id=second)
    expected = f"user: a\nassistant: {REPLY}\nuser: b\nassistant: {REPLY}\nuser: c\nassistant: "
    assert prompts(server)[-1] == expected
    (refused,) = other.ask(previous_response_id=first)
    assert (refused["type"], refused["status"]) == ("error", 404)
    assert refused["error"]["code"] == "previous_response_not_found"
    # The error costs the connection nothing, and a new conversation forgets the one before.
    assert other.ask()[-1]["type"] == "response.completed"
    one.ask(input="new")
    (forgotten,) = one.ask(previous_response_id=second)
    assert forgotten["error"]["code"] == "previous_response_not_found"


def test_what_is_stored_is_there_for_all(start, talk) -> None:
    server = start(FakeClient())
    stored = talk(server).ask(store=True)[-1]["response"]["id"]
    assert server.openai().responses.retrieve(stored).output_text == REPLY
    assert talk(server).ask(previous_response_id=stored)[-1]["type"] == "response.completed"


def test_a_prompt_is_computed_ahead(start, talk) -> None:
    server = start(FakeClient())
    talking = talk(server)
    warm = talking.ask(input="a", instructions="Be kind.", generate=False)
    assert [event["type"] for event in warm][-1] == "response.completed"
    response = warm[-1]["response"]
    assert response["output"] == [] and response["max_output_tokens"] is None
    assert server.client.requests[0].sampling.max_tokens == 1
    talking.ask(input="b", instructions="Be kind.", previous_response_id=response["id"])
    assert prompts(server)[-1] == "system: Be kind.\nuser: a\nb\nassistant: "


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"type": "response.append"}', "type"),
        ('{"model": "fake", "input": "hi"}', "type"),
        (json.dumps({**ASK, "model": "gpt"}), "model"),
        (json.dumps({**ASK, "temperature": 7}), "temperature"),
        (json.dumps({**ASK, "input": "x" * 3000}), "input"),
    ],
)
def test_what_is_wrong_is_told_and_costs_nothing(shared, talk, text: str, param: str) -> None:
    talking = talk(shared)
    talking.connection.send(text)
    event = talking.hear()
    assert event["type"] == "error" and event["status"] in (400, 404)
    assert event["error"]["param"] == param and event["error"]["message"]
    assert talking.ask()[-1]["type"] == "response.completed"


def test_bytes_end_the_connection(shared, talk) -> None:
    talking = talk(shared)
    talking.connection.send(b"{}")
    with pytest.raises(ConnectionClosed, match="Messages are JSON texts"):
        talking.hear()


def test_one_response_at_a_time_which_can_be_cancelled(start, talk) -> None:
    server = start(FakeClient(delay=0.02))
    talking = talk(server)
    talking.say()
    assert talking.hear()["type"] == "response.created"
    talking.say()
    while (event := talking.hear())["type"] != "error":
        pass
    assert event["status"] == 409 and event["error"]["type"] == "response_in_progress"
    talking.say(type="response.cancel")
    while (event := talking.hear())["type"] not in ENDS:
        pass
    assert event["type"] == "response.cancelled" and len(server.client.aborted) == 1
    assert talking.ask()[-1]["type"] == "response.completed"


def test_who_leaves_ends_the_response(start, talk) -> None:
    server = start(FakeClient(delay=0.05))
    talking = talk(server)
    talking.say()
    talking.hear()
    talking.connection.close()
    wait_until(lambda: len(server.client.aborted) == 1)
    wait_until(lambda: server.context.metrics.load == 0)


def test_an_engine_that_dies_ends_the_response(start, talk) -> None:
    talking = talk(start(FakeClient(die_after=3)))
    events = talking.ask()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    (refused,) = talking.ask()
    assert refused["status"] == 503


def test_keys_and_origins_are_those_of_http(start, talk) -> None:
    server = start(FakeClient(), ServerConfig(api_key=("sk-a",)))
    for headers in ({}, {"Authorization": "Bearer sk-b"}):
        with pytest.raises(InvalidStatus) as refused:
            talk(server, **headers)
        assert refused.value.response.status_code == 401
        assert b"API key" in (refused.value.response.body or b"")
    with pytest.raises(InvalidStatus) as refused:
        talk(server, Authorization="Bearer sk-a", Origin="https://evil.example")
    assert refused.value.response.status_code == 403
    for headers in ({"Authorization": "Bearer sk-a"}, {"x-api-key": "sk-a"}):
        assert talk(server, **headers).ask()[-1]["type"] == "response.completed"


def test_other_paths_have_none(shared) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(shared.url.replace("http", "ws", 1) + "/v1/chat/completions")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "request_text",
    [
        b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n{}{}",
        b"GET /v1/responses HTTP/1.1\r\nHost: a b\r\n{}",
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{}",
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n{}",
    ],
)
def test_a_handshake_that_is_none_is_refused(shared: RunningServer, request_text: bytes) -> None:
    upgrade = (
        b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: c6WfxyFs5ojJ9cVMQwkaNg==\r\n\r\n"
    )
    reply = shared.exchange(request_text.replace(b"{}", upgrade, 1))
    assert reply.startswith(b"HTTP/1.1 4") and b" 101 " not in reply.split(b"\r\n")[0]


def test_a_message_that_is_too_large_ends_the_connection(start, talk) -> None:
    talking = talk(start(FakeClient(), ServerConfig(max_body_bytes=2048)))
    talking.say(input="x" * 4096)
    with pytest.raises(ConnectionClosed) as closed:
        talking.hear()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
