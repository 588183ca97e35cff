"""Several models: loaded when asked for, unloaded for room or rest, never while in use."""

import asyncio
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pagoda.base.errors import (
    CapacityError,
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    ModelNotFoundError,
    SourceError,
)
from pagoda.config.engine import EngineConfig
from pagoda.engine.served import entries
from pagoda.engine.served import fleet as fleets
from pagoda.engine.served.entries import find_models, model_entries
from pagoda.engine.served.fleet import Fleet
from pagoda.weights.source import parse_ref

from .fake_fleet import LIMIT, SIZES, FakeEngine, make, states, use

pytestmark = pytest.mark.usefixtures("fake_engines")


async def test_a_model_is_loaded_once_for_all_who_wait():
    fleet = make("small", "big")
    assert [entry.state for entry in fleet.entries] == ["unloaded", "unloaded"]
    served = await asyncio.gather(*(use(fleet, "small") for _ in range(5)))
    assert len({id(one) for one in served}) == 1
    assert [name for name, _ in FakeEngine.launches] == ["small"]
    assert served[0].names == ("small",) and served[0].text.model == "small"
    assert [entry.state for entry in fleet.entries] == ["loaded", "unloaded"]
    assert fleet.find("small").planned_bytes == 10


async def test_memory_that_is_held_is_measured():
    fleet = make("small")
    entry = fleet.find("small")
    assert entry.held_bytes == 0
    served = await use(fleet, "small")
    pages = int(Path("/proc/self/statm").read_text().split()[1])  # its engine plays in this process
    assert entry.held_bytes >= 0.9 * pages * resource.getpagesize()
    served.client.ready = msgspec.structs.replace(
        served.client.ready,
        device="cuda",
        ledger=[
            {"kind": "memory", "name": "weights", "predicted": 10, "measured": 12},
            {"kind": "memory", "name": "process", "predicted": 5, "measured": None},
            {"kind": "time", "name": "weights", "predicted": 7, "measured": 8},
        ],
    )
    assert entry.held_bytes == 12 + 5


async def test_who_was_not_used_for_longest_makes_room():
    fleet = make("small", "other", "big")
    await use(fleet, "other")
    await use(fleet, "small")
    await use(fleet, "big")
    assert FakeEngine.running == {"small", "big"}
    await use(fleet, "other")
    assert FakeEngine.running == {"other", "big"} or FakeEngine.running == {"other", "small"}
    assert FakeEngine.most <= LIMIT


async def test_pinned_models_stay():
    fleet = make("other", "big", "small", pinned=("other",))
    await use(fleet, "other")
    await use(fleet, "small")
    await use(fleet, "big")
    assert FakeEngine.running == {"other", "big"}


async def test_a_model_in_use_is_waited_for(monkeypatch):
    fleet = make("big", "other", "small")
    await asyncio.gather(use(fleet, "big", 0.2), use_later(fleet, "other", 0.1))
    assert FakeEngine.running == {"other"} or FakeEngine.running == {"other", "big"}
    fleet = make("huge")
    with pytest.raises(CapacityError, match=r"There is no room for huge: 1000 bytes do not fit\."):
        await use(fleet, "huge")
    monkeypatch.setattr(fleets, "_ROOM_SECONDS", 0.05)
    FakeEngine.running.clear()
    FakeEngine.alive.clear()
    fleet = make("big", "other")
    SIZES["other"] = 40
    try:
        with pytest.raises(CapacityError, match="Loaded: big 60 B"):
            await asyncio.gather(use(fleet, "big", 0.3), use_later(fleet, "other", 0.1))
    finally:
        SIZES["other"] = 30


async def test_a_model_that_comes_into_use_while_another_loads_stays(monkeypatch):
    monkeypatch.setitem(SIZES, "other", 40)
    fleet = make("big", "other")
    await use(fleet, "big")
    # `use` fails where its model is taken away.
    await asyncio.gather(use(fleet, "other"), use_later(fleet, "big", 0.005, 0.2))
    assert FakeEngine.most <= LIMIT


async def use_later(fleet: Fleet, name: str, wait: float, seconds: float = 0.0) -> Any:
    await asyncio.sleep(wait)
    return await use(fleet, name, seconds)


async def test_many_requests_for_more_models_than_fit():
    fleet = make("small", "big", "other")
    names = ["small", "big", "other"] * 8
    await asyncio.wait_for(asyncio.gather(*(use(fleet, name, 0.01) for name in names)), 30)
    assert FakeEngine.most <= LIMIT


async def test_idle_models_rest_and_come_back():
    fleet = make("small", "big", pinned=("big",), idle_seconds=0.2)
    watch = asyncio.create_task(fleet.watch_idle())
    try:
        await asyncio.gather(use(fleet, "small", 0.5), use(fleet, "big"))
        assert FakeEngine.running == {"small", "big"}, "in use, pinned"
        async with asyncio.timeout(5):
            while "small" in FakeEngine.running:
                await asyncio.sleep(0.02)
        assert FakeEngine.running == {"big"}
        await use(fleet, "small")
    finally:
        watch.cancel()


async def test_a_failed_load_is_told_and_can_be_tried_again():
    fleet = make("small", "broken")
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="broken"):
            await use(fleet, "broken")
    entry = fleet.find("broken")
    assert (entry.state, entry.cause) == ("failed", "The file is broken.")
    assert (await use(fleet, "small")).client.state == "ready"


async def test_news():
    fleet = make("small")
    queue = fleet.listen()
    await use(fleet, "small")
    await fleet.unload(fleet.find("small"))
    fleet.forget(queue)
    await use(fleet, "small")
    told = [queue.get_nowait() for _ in range(queue.qsize())]
    states = [event["status"] for event in told]
    assert states == ["loading", "loading", "loaded", "unloaded", "unloaded"]
    assert told[1]["progress"] == {"phase": "load weights", "done": 1, "total": 2}
    assert told[2]["bytes"] > 1 << 20, "resident, not the 10 of its plan"


async def test_shutdown_ends_all_and_loads_under_way():
    fleet = make("small", "big")
    await use(fleet, "small")
    load = fleet.begin(fleet.find("big"))
    await fleet.shutdown()
    assert FakeEngine.running == set() and load.cancelled()


async def test_leaving_while_a_model_loads_harms_nobody():
    fleet = make("small")
    impatient = asyncio.create_task(use(fleet, "small"))
    patient = asyncio.create_task(use(fleet, "small"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).client.state == "ready"
    assert fleet.find("small").users == 0


def test_names_and_pins():
    config = EngineConfig()
    entries = model_entries(config, ["fast=./x.gguf", "org/name"], ["fast"], {"found": "/m/found"})
    assert [entry.names for entry in entries] == [
        ("smollm2",), ("fast",), ("org/name",), ("found",)
    ]  # fmt: skip
    assert [entry.config.model.model for entry in entries][1:] == [
        "./x.gguf", "org/name", "/m/found"
    ]  # fmt: skip
    assert [entry.pinned for entry in entries] == [False, True, False, False]
    with pytest.raises(ConfigError, match="--pin slow is none of the models"):
        model_entries(config, [], ["slow"], {})
    with pytest.raises(ConfigError, match="Two models have the name 'smollm2'"):
        Fleet(model_entries(config, ["smollm2"], [], {}))
    with pytest.raises(ModelNotFoundError):
        Fleet(entries).find("nobody")


def test_models_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").touch()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x-Q4_0.gguf").touch()
    (tmp_path / "c.gguf").touch()
    (tmp_path / "mmproj-c.gguf").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    assert list(find_models(str(tmp_path))) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="has no models"):
        find_models(str(tmp_path / "empty"))
    assert find_models(None) == {}


async def test_what_failed_is_not_tried_for_each_request(monkeypatch):
    fleet = make("small", "broken")
    for _ in range(3):
        with pytest.raises(EngineDeadError, match="broken"):
            await use(fleet, "broken")
    assert [name for name, _ in FakeEngine.launches] == ["broken"]
    monkeypatch.setattr(fleets, "_RETRY_SECONDS", 0.0)
    await fleet.unload(fleet.find("broken"))  # as the route does before it loads again
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="broken"):
            await use(fleet, "broken")
    assert len(FakeEngine.launches) == 3


def test_what_can_be_no_model_is_said_at_the_start(monkeypatch):
    monkeypatch.setattr(entries, "parse_ref", parse_ref)
    with pytest.raises(SourceError, match="no file or folder 'nosuch'"):
        model_entries(EngineConfig(), ["nosuch"], [], {})


async def test_a_model_that_sleeps_refuses_until_it_is_woken():
    fleet = make("small", "other")
    await use(fleet, "small")
    small = fleet.find("small")
    await fleet.sleep(small, 1)
    assert states(fleet) == ["sleeping", "unloaded"] and FakeEngine.running == {"small"}
    with pytest.raises(EngineAsleepError, match="of small sleeps; POST /wake_up"):
        await use(fleet, "small")
    await use(fleet, "other")
    await fleet.wake(small)
    await use(fleet, "small")
    assert [name for name, _ in FakeEngine.launches] == ["small", "other"]


async def test_the_second_level_ends_the_engine_and_waking_starts_it():
    fleet = make("small")
    await use(fleet, "small")
    small = fleet.find("small")
    await fleet.sleep(small, 1)
    await fleet.sleep(small, 2)
    assert states(fleet) == ["sleeping"] and FakeEngine.running == set()
    await fleet.sleep(small, 1)
    assert small.asleep == 2, "it sleeps as deeply as before"
    with pytest.raises(EngineAsleepError):
        await use(fleet, "small")
    await fleet.wake(small)
    assert states(fleet) == ["loaded"] and FakeEngine.running == {"small"}
    await fleet.wake(small)
    assert len(FakeEngine.launches) == 2


async def test_calls_that_overlap_come_one_after_the_other():
    fleet = make("small")
    await use(fleet, "small")
    small = fleet.find("small")
    calls = [fleet.sleep(small, 2), fleet.wake(small), fleet.sleep(small, 1), fleet.sleep(small, 1)]
    await asyncio.gather(*calls)
    assert states(fleet) == ["sleeping"] and FakeEngine.running == {"small"}
    await asyncio.gather(fleet.wake(small), fleet.wake(small), fleet.sleep(small, 2))
    assert states(fleet) == ["sleeping"] and FakeEngine.running == set()


async def test_a_model_that_loads_is_loaded_before_it_sleeps():
    fleet = make("small")
    asked = asyncio.create_task(fleet.ready(fleet.find("small")))
    await asyncio.sleep(0.001)
    small = fleet.find("small")
    assert small.state == "loading"
    await fleet.sleep(small, 1)
    assert (await asked) is small.served
    assert states(fleet) == ["sleeping"]


async def test_one_that_was_never_loaded_sleeps_too():
    fleet = make("small")
    small = fleet.find("small")
    await fleet.sleep(small, 1)
    with pytest.raises(EngineAsleepError):
        await use(fleet, "small")
    await fleet.wake(small)
    assert FakeEngine.running == {"small"}


async def test_an_engine_that_cannot_be_asked_is_not_asleep():
    fleet = make("small")
    served = await use(fleet, "small")
    small = fleet.find("small")
    served.client.state = "starting"
    with pytest.raises(EngineDeadError, match="starting"):
        await fleet.sleep(small, 1)
    served.client.state = "ready"
    await use(fleet, "small")


async def test_what_fails_to_wake_says_why_and_is_tried_again():
    fleet = make("broken")
    broken = fleet.find("broken")
    await fleet.sleep(broken, 2)
    with pytest.raises(EngineDeadError, match="file is broken"):
        await fleet.wake(broken)
    assert states(fleet) == ["failed"]
    with pytest.raises(EngineDeadError, match="file is broken"):
        await use(fleet, "broken")
