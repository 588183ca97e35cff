"""An engine that dies, stands still and comes back, in time that passes at once."""

import asyncio

import numpy as np
import pytest

from pagoda.base.errors import EngineAsleepError, EngineDeadError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import (
    AbortRequests,
    EngineDied,
    EngineHeartbeat,
    Utility,
    UtilityResult,
)
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.supervision import SupervisionLimits
from tests.engine.fake_child import READY, FakeChild, delta, error_of, progress, request, sent
from tests.virtual_time import in_virtual_time

PIXELS = {name: np.zeros((1, 2, 2, 3), np.uint8) for name in ("cat", "dog")}


class Rig:
    """A client, and the processes that it started."""

    def __init__(self, folder, stall=100.0, restarts=5):
        self.children: list[FakeChild] = []
        self.launches: list[float] = []
        self.refuses = 0
        """Processes to come that the system refuses."""

        def spawn(config, options):
            self.launches.append(asyncio.get_running_loop().time())
            if self.refuses:
                self.refuses -= 1
                raise OSError("Cannot allocate memory")
            self.children.append(FakeChild(folder / f"{len(self.children)}"))
            return self.children[-1]

        options = LaunchOptions(supervision=SupervisionLimits(stall, restarts))
        self.client = EngineClient(EngineConfig(), options, spawn)

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    async def serve(self):
        self.client._attach()
        self.child.say(READY)
        await self.client.wait_ready(1000, lambda step: None)

    async def die(self, code=1, seconds=0.2):
        self.child.exit(code)
        await asyncio.sleep(seconds)


@in_virtual_time
async def test_deaths_in_a_row_wait_longer_and_end_with_the_last_cause(tmp_path):
    rig = Rig(tmp_path, restarts=4)
    await rig.serve()
    for number in range(4):
        rig.child.say(EngineDied(f"cause {number}"))
        await rig.die(seconds=100)
        assert rig.client.state == "starting" and rig.client.cause == f"cause {number}"
    starts = [after - before for before, after in zip(rig.launches, rig.launches[1:], strict=False)]
    assert [round(seconds - 100 * (number > 0)) for number, seconds in enumerate(starts)] == [
        0, 1 - 0, 2 - 1, 4 - 2,
    ]  # fmt: skip
    rig.child.say(EngineDied("the last one"))
    await rig.die()
    assert rig.client.state == "dead" and rig.client.died_at is not None
    await rig.client.wait_end()
    with pytest.raises(EngineDeadError, match="the last one"):
        await rig.client.call("stats")
    assert all(child.closed for child in rig.children)
    await rig.client.shutdown()


@in_virtual_time
async def test_what_served_long_enough_starts_the_count_anew(tmp_path):
    rig = Rig(tmp_path, restarts=1)
    for _ in range(5):
        await rig.serve()
        await asyncio.sleep(601)
        await rig.die()
        assert rig.client.state == "starting"
    await rig.client.shutdown()


@in_virtual_time
async def test_a_process_that_the_system_refuses_is_tried_again(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    rig.refuses = 2
    await rig.die(seconds=10)
    assert len(rig.launches) == 4 and rig.client.restarts == 3
    await rig.serve()
    await rig.client.shutdown()


@in_virtual_time
async def test_requests_that_had_not_begun_run_again_in_their_order(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    names = ["begun", "late", "left", "cat", "both"]
    pictures = {"cat": ["cat"], "both": ["cat", "dog"], "left": ["dog"]}
    inboxes = {
        name: rig.client.submit([request(name, *pictures.get(name, ()))], PIXELS) for name in names
    }
    siblings = rig.client.submit([request("one"), request("two")])
    rig.child.say(delta("begun"), delta("one", "stop"), progress("late"))
    await rig.die()
    assert [one.prompt_progress for one in inboxes["late"].take()] == [(2, 0)]
    assert await error_of(inboxes["begun"]) == "The engine process ended with exit status 1; " \
        "its log says why."  # fmt: skip
    assert "exit status 1" in await error_of(siblings), "a part of it has been read"
    rig.client.drop(["left"])
    assert not rig.child.sent, "nobody listens yet"
    with pytest.raises(EngineDeadError, match=r"starting \(phase: launch\) after it died"):
        rig.client.submit([request("new")])
    rig.child.say(READY)
    await rig.client.wait_ready()
    assert sent(rig.child) == ["late", "cat", "both"]
    for message in rig.child.sent:
        for item in message.media:
            assert item.payload == str(rig.child.folder / f"{item.content_hash}.npy")
            assert np.load(item.payload).shape == (1, 2, 2, 3)
    rig.child.say(*(delta(name, "stop") for name in sent(rig.child)))
    for name in sent(rig.child):
        await inboxes[name].arrival()
        assert [one.token_ids for one in inboxes[name].take()] == [[5]]
    assert rig.client.num_running == 0 and list(rig.child.folder.iterdir()) == []
    await rig.client.shutdown()


@in_virtual_time
async def test_a_request_that_was_inside_of_two_deaths_ends(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("suspect")])
    await rig.die()
    await rig.die(seconds=2)  # while it starts: nothing was inside
    await rig.serve()
    assert sent(rig.child) == ["suspect"]
    beside = rig.client.submit([request("beside")])
    await rig.die(code=7, seconds=3)
    assert "exit status 7" in await error_of(inbox)
    await rig.serve()
    assert sent(rig.child) == ["beside"]
    rig.client.drop(["beside"])
    assert rig.child.sent[-1] == AbortRequests(["beside"])
    await rig.client.shutdown()
    assert not beside.take()


@in_virtual_time
async def test_who_waits_for_a_restart_that_never_comes_hears_why(tmp_path):
    rig = Rig(tmp_path, restarts=1)
    await rig.serve()
    inbox = rig.client.submit([request("waits", "cat")], PIXELS)
    await rig.die()
    await rig.die(code=9)
    assert rig.client.state == "dead" and "exit status 9" in await error_of(inbox)
    assert rig.client.num_running == 0 and all(child.closed for child in rig.children)


@in_virtual_time
async def test_pictures_that_cannot_be_moved_end_their_requests(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("cat", "cat")], PIXELS)
    (rig.child.folder / "cat.npy").unlink()
    await rig.die()
    assert "pictures" in await error_of(inbox)
    await rig.serve()
    assert rig.child.sent == []
    await rig.client.shutdown()


@in_virtual_time
async def test_shutdown_while_no_process_runs(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("waits")])
    await rig.die()
    await rig.die(seconds=0.5)
    assert rig.client._restart is not None
    await rig.client.shutdown()
    assert rig.client.state == "stopped" and await error_of(inbox) == "The engine was stopped."
    await asyncio.sleep(100)
    assert len(rig.launches) == 2
    await rig.client.shutdown()


@in_virtual_time
async def test_a_kill_while_no_process_runs(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    await rig.die()
    await rig.die(seconds=0.5)
    rig.client.kill()
    await rig.client.wait_end()
    assert rig.client.state == "stopped" and len(rig.launches) == 2


@in_virtual_time
async def test_an_engine_that_died_asleep_sleeps_again(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    sleeping = asyncio.create_task(rig.client.sleep())
    await asyncio.sleep(0)
    rig.child.say(UtilityResult(rig.child.sent[-1].call_id))
    await sleeping
    await rig.die()
    await rig.serve()
    assert [(type(m), m.method) for m in rig.child.sent] == [(Utility, "sleep")]
    with pytest.raises(EngineAsleepError):
        rig.client.submit([request("early")])
    waking = asyncio.create_task(rig.client.wake_up())
    await asyncio.sleep(0)
    rig.child.say(*(UtilityResult(message.call_id) for message in rig.child.sent))
    await waking
    await rig.die(seconds=2)
    await rig.serve()
    assert rig.child.sent == []
    await rig.client.shutdown()


@in_virtual_time
async def test_an_engine_that_dies_while_it_is_put_to_sleep_is_awake(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    sleeping = asyncio.create_task(rig.client.sleep())
    await asyncio.sleep(0)
    await rig.die()
    with pytest.raises(EngineDeadError, match="exit status 1"):
        await sleeping
    await rig.serve()
    assert not rig.client.asleep and rig.child.sent == []
    await rig.client.shutdown()


@in_virtual_time
async def test_a_silent_engine_is_reported_killed_and_replaced(tmp_path, caplog):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("waits")])
    await asyncio.sleep(1000)
    assert rig.client.stalled is None and rig.client.silent_seconds <= 1
    rig.child.beats = None
    await asyncio.sleep(15)
    assert rig.client.state == "ready" and rig.client.stalled.startswith("The engine said nothing")
    assert "it is killed if that goes on" in caplog.text
    await asyncio.sleep(15)
    assert rig.client.state == "starting" and len(rig.children) == 2
    assert rig.client.cause.endswith("s and was killed.") and "memory" not in rig.client.cause
    assert rig.client.stalled is None
    await rig.serve()
    assert sent(rig.child) == ["waits"]
    await rig.client.shutdown()
    assert await error_of(inbox)


@in_virtual_time
async def test_a_step_without_end_ends_those_that_had_begun(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("begun")])
    rig.child.beats = EngineHeartbeat(1, "step")
    rig.child.say(delta("begun"))
    await asyncio.sleep(60)
    assert rig.client.stalled.startswith("The engine made no progress for 5")
    rig.child.beats = EngineHeartbeat(2, "step")
    await asyncio.sleep(10)
    assert rig.client.stalled is None, "it went on"
    await asyncio.sleep(250)
    error = await error_of(inbox)
    assert error.startswith("The engine made no progress for 4 min"), "four times the 60 s before"
    assert error.endswith("s (phase: step) and was killed.")
    await rig.client.shutdown()


@in_virtual_time
async def test_while_it_stops_nobody_is_in_a_hurry(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    rig.child.beats = EngineHeartbeat(1, "save")
    stopping = asyncio.create_task(rig.client.shutdown(drain_seconds=500))
    await asyncio.sleep(400)
    assert rig.client.state == "ready"
    rig.child.exit(0)
    await stopping
    assert rig.client.state == "stopped"
