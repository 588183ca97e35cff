"""Which model a task goes to: the one that the settings name, or the server's first."""

import json

import pytest

from pagoda_agent.base.errors import ModelError
from pagoda_agent.models.chosen import chosen_model
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings
from pagoda_agent.task.control import State
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.agent.model_server import ModelServer
from tests.agent.test_operator import QUICK, journal, run

CLICK = {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 500]}}
DONE = {"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}


def call(arguments):
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


async def test_a_task_goes_to_the_servers_first_model(tmp_path):
    computer = FakeComputer()
    script = [call(CLICK), call(DONE)]
    with ModelServer(script, models=("Qwen3-VL-8B-Instruct", "other")) as server:
        settings = Settings(base_url=f"{server.url}/v1", api_key="sk-of-the-user")
        operator = Operator(computer, settings, Secrets({}), tmp_path, QUICK)
        control = await run(operator)
        assert control.state is State.DONE, control.reason
        assert [request.body["model"] for request in server.requests] == [
            "Qwen3-VL-8B-Instruct"
        ] * 2
        assert [headers["authorization"] for headers in server.lists] == ["Bearer sk-of-the-user"]
    # Its profile is the one of its name: the clicks above were understood and counted so.
    assert computer.done("move") == [("move", 320, 180)]
    assert journal(operator)[0]["model"] == "Qwen3-VL-8B-Instruct"
    assert journal(operator)[0]["profile"] == "qwen3-vl"


async def test_a_named_model_is_not_looked_up():
    with ModelServer() as server:
        chosen = await chosen_model(Settings(base_url=f"{server.url}/v1", model="mine"))
        await chosen.model.close()
    assert chosen.name == "mine" and server.lists == []


async def test_the_list_is_asked_for_as_the_api_wants_it():
    settings = {"api": "anthropic", "api_key": "sk-ant"}
    with ModelServer() as server:
        chosen = await chosen_model(Settings(base_url=f"{server.url}/v1", **settings))
        await chosen.model.close()
    assert chosen.name == "scripted"
    (headers,) = server.lists
    assert headers["x-api-key"] == "sk-ant" and headers["anthropic-version"]
    assert "authorization" not in headers


async def test_a_server_without_models(tmp_path):
    computer = FakeComputer()
    with ModelServer(models=()) as server:
        settings = Settings(base_url=f"{server.url}/v1")
        operator = Operator(computer, settings, Secrets({}), tmp_path / "runs", QUICK)
        with pytest.raises(ModelError, match="serves no model. Load one there, or name one"):
            await operator.start("x")
    assert not operator.busy and computer.log == []
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def card(name, *takes):
    return {"id": name, "architecture": {"input_modalities": [*takes]}}


async def test_the_first_that_may_see_is_taken():
    models = [card("reads", "text"), card("sees", "text", "image")]
    with ModelServer(models=models) as server:
        chosen = await chosen_model(Settings(base_url=f"{server.url}/v1"))
        await chosen.model.close()
    assert chosen.name == "sees"


async def test_a_server_of_models_that_cannot_see(tmp_path):
    with ModelServer(models=[card("smollm2", "text")]) as server:
        settings = Settings(base_url=f"{server.url}/v1")
        operator = Operator(FakeComputer(), settings, Secrets({}), tmp_path / "runs", QUICK)
        with pytest.raises(ModelError, match="smollm2 cannot see: .* Serve a model that takes pic"):
            await operator.start("x")
        assert server.requests == []
    assert not (tmp_path / "runs").exists(), "nothing was begun"


async def test_a_wrong_base_url():
    with ModelServer() as server, pytest.raises(ModelError, match="cannot be listed: .*.404."):
        await chosen_model(Settings(base_url=f"{server.url}/other"))


async def test_a_page_instead_of_a_list(monkeypatch):
    async def answer(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        await writer.drain()

    monkeypatch.setattr(ModelServer, "_answer", answer)
    with ModelServer() as server, pytest.raises(ModelError, match="no list of models"):
        await chosen_model(Settings(base_url=server.url))


async def test_no_server():
    with pytest.raises(ModelError, match="cannot be listed: nothing answers at"):
        await chosen_model(Settings(base_url="http://127.0.0.1:9/v1"))
