"""The computer over HTTP: another one, and its own buttons."""

import asyncio

import pytest

from pagoda_agent.base.errors import DriverError, NoSignalError
from pagoda_agent.drivers.base import Capabilities, Driver
from pagoda_agent.settings import load
from pagoda_agent.task.claim import claim
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import PATIENCE, computer, make, until
from tests.agent.test_service import events_of, is_over, serve

__all__ = ["computer", "make", "serve"]


class Other(FakeComputer):
    target = "the other computer"

    def __init__(self):
        super().__init__()
        self.is_open = False

    async def open(self):
        self._raise("open")
        self.is_open = True

    async def close(self):
        await super().close()
        self.is_open = False


@pytest.fixture
def other(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    return Other()


async def test_another_computer(make, serve, computer, other, tmp_path, monkeypatch):
    operator, _script = make("mouse 500 500 1", "Done", max_rounds=5)
    operator.make_driver = lambda url: other
    closed = []
    monkeypatch.setattr(computer, "close", lambda: noted(closed))
    running = await serve(operator)
    await operator.open()
    client = await running.controller()
    reply = await client.post("/api/settings", json={"driver": "vnc://:hunter2@desk:1"})
    assert reply.status_code == 200 and reply.json()["driver"] == "vnc://desk:1"
    assert other.is_open and closed, "the one of before was let go"
    claim(computer.target).close()
    with pytest.raises(DriverError, match="the other computer already"):
        claim(other.target)
    await client.post("/api/start", json={"task": "click"})
    await events_of(client, is_over)
    assert other.done("press") and not computer.done("press")
    kept = load(tmp_path / "agent.json")
    assert kept.driver == "vnc://:hunter2@desk:1"
    assert kept.max_rounds == 20, "a flag of the command line is not kept"
    assert "hunter2" not in (await client.get("/api/settings")).text
    await operator.close()
    assert not other.is_open
    claim(other.target).close()


async def noted(calls):
    calls.append("close")


@pytest.mark.parametrize("kind", ["open", "screenshot"])
async def test_a_computer_that_cannot_be_had(make, serve, computer, other, kind, tmp_path):
    operator, _script = make("Done")
    operator.make_driver = lambda url: other
    running = await serve(operator)
    client = await running.controller()
    other.fails[kind] = DriverError("The cable is out.")
    reply = await client.post("/api/settings", json={"driver": "x", "max_rounds": 7})
    assert reply.status_code == 502 and reply.json()["error"] == "The cable is out."
    assert operator.driver is computer and not other.is_open
    assert operator.settings.max_rounds == 20 and not (tmp_path / "agent.json").exists()
    claim(other.target).close()
    # One that is off shows nothing, and can be switched on by its buttons.
    other.fails["screenshot"] = NoSignalError("The screen is dark.")
    reply = await client.post("/api/settings", json={"driver": "x"})
    assert reply.status_code == 200 and operator.driver is other


async def test_a_computer_that_another_agent_has(make, serve, computer, other):
    operator, _script = make("Done")
    operator.make_driver = lambda url: other
    running = await serve(operator)
    client = await running.controller()
    with claim(other.target):
        reply = await client.post("/api/settings", json={"driver": "x"})
    assert reply.status_code == 502 and "Another agent operates" in reply.json()["error"]
    assert operator.driver is computer and not other.is_open


async def test_the_computer_stays_while_a_task_goes_on(make, serve, computer, other):
    operator, _script = make(asyncio.Event())
    operator.make_driver = lambda url: other
    running = await serve(operator)
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    reply = await client.post("/api/settings", json={"driver": "x"})
    assert reply.status_code == 409 and operator.driver is computer and not other.is_open
    assert (await client.post("/api/settings", json={"max_rounds": 7})).status_code == 200


async def test_another_way_to_the_same_computer(make, serve, other, monkeypatch):
    first = Other()
    operator, _script = make("Done")
    operator.driver, operator.make_driver = first, lambda url: other
    running = await serve(operator)
    await operator.open()
    client = await running.controller()
    assert (await client.post("/api/settings", json={"driver": "x"})).status_code == 200
    assert other.is_open and not first.is_open
    with pytest.raises(DriverError, match="already"):
        claim(other.target)


async def test_the_computers_buttons(make, serve, computer):
    operator, script = make(asyncio.Event(), "Done")
    running = await serve(operator)
    client = await running.controller()
    status = (await client.get("/api/status")).json()
    assert status["buttons"] == ["press", "hold", "reset", "replug"]
    assert (await client.post("/api/button", json={"what": "reset"})).status_code == 200
    assert (await client.post("/api/button", json={"what": "explode"})).status_code == 400
    await client.post("/api/start", json={"task": "x"})
    await until(script.asked.is_set)
    running_task = await client.post("/api/button", json={"what": "hold"})
    assert running_task.status_code == 409 and "pause it first" in running_task.json()["error"]
    await client.post("/api/pause")
    assert (await client.post("/api/button", json={"what": "replug"})).status_code == 200
    await client.post("/api/resume")
    await asyncio.wait_for(operator.control.wait(), PATIENCE)
    assert computer.log == [("power", "reset"), ("replug",)]
    assert "I plugged the computer's keyboard and mouse out and in" in script.told()


async def test_buttons_that_the_driver_does_not_have(make, serve, computer, monkeypatch):
    monkeypatch.setattr(computer, "capabilities", Capabilities())
    monkeypatch.setattr(FakeComputer, "power", Driver.power)
    running = await serve(make()[0])
    client = await running.controller()
    assert (await client.get("/api/status")).json()["buttons"] == []
    reply = await client.post("/api/button", json={"what": "press"})
    assert reply.status_code == 400 and "no power buttons" in reply.json()["error"]
