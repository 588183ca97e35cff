"""What happens to a stream when its client or its engine goes away."""

import json
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient

USER = [{"role": "user", "content": "hi"}]
SLOW = {"delay": 0.02}


def events(reply: httpx.Response) -> list[Any]:
    lines = [line for line in reply.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_format_of_the_stream(shared: RunningServer) -> None:
    reply = shared.chat(stream=True, max_tokens=2)
    assert reply.headers["content-type"].startswith("text/event-stream")
    chunks = events(reply)
    assert list(chunks[0]) == ["id", "object", "created", "model", "choices"]
    assert chunks[1]["choices"] == [
        {"index": 0, "delta": {"content": "H"}, "logprobs": None, "finish_reason": None}
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"][0]["stop_reason"] is None
    assert "system_fingerprint" in chunks[-1] and "system_fingerprint" not in chunks[1]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_aborts(start, stream: bool, n: int) -> None:
    client = FakeClient(**SLOW)
    server = start(client)
    connection = socket.create_connection(("127.0.0.1", httpx.URL(server.url).port))
    body = json.dumps({"messages": USER, "stream": stream, "n": n}).encode()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    wait_until(lambda: len(client.running) == n)
    connection.close()
    wait_until(lambda: not client.running)
    assert len(client.aborted) == n
    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})
    counted = f'request_success_total{{engine="0",finished_reason="abort",model_name="fake"}} {n}.0'
    assert counted in server.http.get("/metrics").text


def test_engine_death_in_mid_stream(start) -> None:
    server = start(FakeClient(die_after=3))
    chunks = events(server.chat(stream=True))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "Hel"
    assert chunks[-1]["error"]["code"] == 503
    assert "killed by a test" in chunks[-1]["error"]["message"]


def test_engine_death_reaches_the_official_client(start) -> None:
    server = start(FakeClient(die_after=3))
    stream = server.openai().chat.completions.create(model="fake", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="killed by a test"):
        list(stream)


def test_engine_death_without_a_stream(start) -> None:
    server = start(FakeClient(die_after=3))
    reply = server.chat(n=2)
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) > 0
    assert "killed by a test" in reply.json()["error"]["message"]
    health = server.http.get("/health")
    assert health.status_code == 503
    assert health.json() == {"status": "dead", "cause": "killed by a test"}
    refused = server.chat()
    assert refused.status_code == 503 and "retry-after" in refused.headers


def test_engine_that_comes_back(start) -> None:
    client = FakeClient(state="starting")
    server = start(client)
    assert server.http.get("/health").json()["status"] == "starting"
    assert server.chat().status_code == 503
    client.state = "ready"
    assert server.http.get("/health").status_code == 200
    assert server.chat().status_code == 200


def test_slow_reader_gets_all_of_the_text(start) -> None:
    """More than any socket buffer holds: deltas merge behind a reader that has stopped."""
    text = b"0123456789" * 150
    client = FakeClient(script=lambda request: text)
    server = start(client)
    body = {"messages": USER, "stream": True, "n": 100}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        # The engine runs to its end although nobody reads.
        wait_until(lambda: len(client.requests) == 100 and not client.running)
        texts = dict.fromkeys(range(100), "")
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                texts[choice["index"]] += choice["delta"].get("content", "")
    assert set(texts.values()) == {text.decode()}


def test_many_streams_at_once(start) -> None:
    client = FakeClient(delay=0.001)
    server = start(client)
    texts = []

    def ask() -> None:
        reply = httpx.post(
            f"{server.url}/v1/chat/completions", json={"messages": USER, "stream": True}, timeout=60
        )
        texts.append("".join(c["choices"][0]["delta"].get("content", "") for c in events(reply)))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [REPLY] * 20
    assert len({request.req_id for request in client.requests}) == 20
