"""The official Ollama client, unmodified."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient
from tests.server.seeing import png, seeing
from tests.server.test_pooling import encoder, unit
from tests.server.test_tools import PARIS, ROME
from tests.server.test_tools import REPLY as CALLING

ollama = pytest.importorskip("ollama", reason="the extra `test` brings it")
Connect = Callable[..., Any]
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Any] = []

    def connect(server: RunningServer, **options: Any) -> Any:
        made.append(ollama.Client(server.url, timeout=20, **options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"sunny in {city}"


def test_chat(shared: RunningServer, connect: Connect) -> None:
    client = connect(shared)
    reply = client.chat("fake", USER)
    assert (reply.message.role, reply.message.content) == ("assistant", REPLY)
    assert (reply.done, reply.done_reason) == (True, "stop")
    assert reply.eval_count == len(REPLY.encode()) + 1 and reply.total_duration > 0
    parts = list(client.chat("fake", USER, stream=True, options={"temperature": 0}))
    assert "".join(part.message.content for part in parts) == REPLY
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_tools_there_and_back(serve: Callable[..., RunningServer], connect: Connect) -> None:
    client = connect(serve(CALLING))
    messages: list[Any] = list(USER)
    for options in ({}, {"think": True}):
        reply = client.chat("fake", messages, tools=[weather], **options)
        assert reply.message.thinking == "Two cities."
        calls = [call.function for call in reply.message.tool_calls]
        assert [(call.name, call.arguments) for call in calls] == [
            ("weather", json.loads(PARIS)), ("weather", json.loads(ROME)),
        ]  # fmt: skip
        messages.append(reply.message)
        messages += [
            {"role": "tool", "tool_name": call.name, "content": weather(**call.arguments)}
            for call in calls
        ]
    parts = list(client.chat("fake", USER, tools=[weather], stream=True))
    assert sum(len(part.message.tool_calls or ()) for part in parts) == 2


def test_generate(shared: RunningServer, connect: Connect) -> None:
    client = connect(shared)
    first = client.generate("fake", "hi", system="Be kind.")
    assert first.response == REPLY
    parts = list(client.generate("fake", "more", context=first.context[:-1], stream=True))
    assert "".join(part.response for part in parts) == REPLY
    assert parts[-1].context[: len(first.context) - 1] == first.context[:-1]
    reply = client.generate("fake", "x", raw=True, logprobs=True, top_logprobs=1)
    assert reply.logprobs[0].token == "H" and reply.logprobs[0].top_logprobs[0].logprob == -0.5


def test_pictures(start: Callable[..., RunningServer], connect: Connect) -> None:
    server = seeing(start)
    message = {"role": "user", "content": "What is it?", "images": [png()]}
    assert connect(server).chat("fake", [message]).message.content == REPLY
    assert len(server.client.requests[-1].media) == 1


def test_vectors(start: Callable[..., RunningServer], connect: Connect) -> None:
    client = connect(start(encoder()))
    reply = client.embed("fake", ["ab", "aab"])
    assert reply.embeddings[1] == pytest.approx(unit(2, 1, 0, 0))
    assert client.embeddings("fake", "aab").embedding == [2, 1, 0, 0]


def test_models(shared: RunningServer, connect: Connect) -> None:
    client = connect(shared)
    assert [model.model for model in client.list().models] == ["fake", "fake-alias"]
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("fake", 2048)
    shown = client.show("fake:latest")
    assert shown.capabilities == ["completion"]
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == 2048, "where VS Code looks"
    assert list(client.pull("fake", stream=True))[0].status == "pulling manifest"


def test_errors(start: Callable[..., RunningServer], connect: Connect) -> None:
    config = ServerConfig(disable_uvicorn_access_log=True, api_key=("k",))
    server = start(FakeClient(die_after=3), config)
    with pytest.raises(ollama.ResponseError, match="key is missing") as caught:
        connect(server).list()
    assert caught.value.status_code == 401
    client = connect(server, headers={"Authorization": "Bearer k"})
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("other", USER)
    assert caught.value.status_code == 404
    for call in (client.delete, client.create, client.push):
        with pytest.raises(ollama.ResponseError, match="not offered") as caught:
            call("fake")
        assert caught.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="killed by a test"):
        list(client.chat("fake", USER, stream=True))
