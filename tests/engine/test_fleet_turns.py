"""What happens to a model's engine happens in turns, whatever is asked at the same time."""

import asyncio
import random

import pytest

from pagoda.base.errors import EngineAsleepError, EngineDeadError

from .fake_fleet import LIMIT, FakeEngine, make, states, use

pytestmark = pytest.mark.usefixtures("fake_engines")


async def test_an_engine_that_was_stopped_from_outside_is_started_again():
    fleet = make("small")
    (await use(fleet, "small")).client.kill()
    assert states(fleet) == ["failed"]
    served = await asyncio.gather(*(use(fleet, "small") for _ in range(5)))
    assert len({id(one) for one in served}) == 1
    assert [name for name, _ in FakeEngine.launches] == ["small", "small"]
    assert states(fleet) == ["loaded"]


async def test_an_engine_that_was_given_up_is_loaded_again_after_a_while(monkeypatch):
    fleet = make("small", "other")
    served = await use(fleet, "small")
    served.client.give_up("It died too often.")
    entry = fleet.find("small")
    assert (entry.state, entry.cause, entry.planned_bytes) == ("failed", "It died too often.", 0)
    with pytest.raises(EngineDeadError, match="too often"):
        await use(fleet, "small")
    await use(fleet, "other")
    monkeypatch.setattr("pagoda.engine.served.fleet._RETRY_SECONDS", 0.0)
    again = await asyncio.gather(*(use(fleet, "small") for _ in range(3)))
    assert again[0].client is not served.client and states(fleet) == ["loaded", "loaded"]
    assert [name for name, _ in FakeEngine.launches] == ["small", "other", "small"]
    await fleet.shutdown()


@pytest.mark.parametrize("level", [1, 2])
async def test_one_that_was_stopped_can_be_put_to_sleep_and_woken(level):
    fleet = make("small")
    small = fleet.find("small")
    (await use(fleet, "small")).client.kill()
    await fleet.sleep(small, level)
    assert states(fleet) == ["sleeping"]
    await fleet.wake(small)
    (await use(fleet, "small")).client.kill()
    await fleet.wake(small)
    await use(fleet, "small")
    assert len(FakeEngine.launches) == 3


async def test_one_that_stopped_while_it_slept_wakes_up():
    fleet = make("small")
    small = fleet.find("small")
    served = await use(fleet, "small")
    await fleet.sleep(small, 1)
    served.client.kill()
    await fleet.wake(small)
    await use(fleet, "small")


async def test_a_model_is_loaded_again_once_its_engine_has_left():
    fleet = make("small")
    small = fleet.find("small")
    await use(fleet, "small")
    leaves = asyncio.create_task(fleet.unload(small, drain_seconds=0.05))
    await asyncio.sleep(0)
    # `FakeEngine` fails where a model would have two.
    await asyncio.gather(*(use(fleet, "small") for _ in range(3)), leaves)
    assert leaves.result() and states(fleet) == ["loaded"]
    assert len(FakeEngine.launches) == 2


async def test_what_leaves_counts_until_it_is_gone_and_is_waited_for():
    fleet = make("big", "other", memory_bytes=80)
    await use(fleet, "big")
    leaves = asyncio.create_task(fleet.unload(fleet.find("big"), drain_seconds=0.5))
    await asyncio.sleep(0)
    await use(fleet, "other")
    assert leaves.done() and FakeEngine.most <= 80
    assert FakeEngine.launches[1][1].limit == 20, "60 of 80 are taken"


async def test_an_unload_that_is_given_up_leaves_no_engine():
    fleet = make("small")
    await use(fleet, "small")
    leaves = asyncio.create_task(fleet.unload(fleet.find("small"), drain_seconds=60))
    await asyncio.sleep(0)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert FakeEngine.alive == set()
    await use(fleet, "small")


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_overlaps_a_model_has_one_engine(seed):
    """Loads, unloads, sleep, waking up, ends from outside and requests at any moment."""
    chance = random.Random(seed)
    fleet = make("small", "big", "other")

    async def something() -> None:
        entry = chance.choice(fleet.entries)
        await asyncio.sleep(chance.uniform(0, 0.1))
        what = chance.choice(["use", "use", "load", "unload", "sleep", "wake", "kill"])
        if what == "use":
            with entry.used():
                await fleet.ready(entry)
                await asyncio.sleep(chance.uniform(0, 0.02))
        elif what == "load":
            await asyncio.wait([fleet.begin(entry)])
        elif what == "unload":
            await fleet.unload(entry, drain_seconds=chance.uniform(0, 0.02))
        elif what == "sleep":
            await fleet.sleep(entry, chance.choice([1, 2]), wait=chance.random() < 0.5)
        elif what == "wake":
            await fleet.wake(entry)
        elif entry.served is not None:
            entry.served.client.kill()

    async with asyncio.timeout(30):
        ends = await asyncio.gather(*(something() for _ in range(40)), return_exceptions=True)
        refusals = (EngineAsleepError, EngineDeadError)
        assert [end for end in ends if end is not None and not isinstance(end, refusals)] == []
        for entry in fleet.entries:
            await fleet.wake(entry)
            await use(fleet, entry.names[0])
    assert FakeEngine.most <= LIMIT
    held = {entry.names[0] for entry in fleet.entries if entry.held is not None}
    assert FakeEngine.alive == held
    await fleet.shutdown()
    assert FakeEngine.alive == set()


async def test_who_waits_for_a_load_that_is_given_up_is_served_by_the_next():
    fleet = make("small")
    waits = asyncio.create_task(use(fleet, "small"))
    await asyncio.sleep(0)
    assert await fleet.unload(fleet.find("small"))
    assert (await waits).client.state == "ready"
    assert states(fleet) == ["loaded"]


async def test_a_fleet_that_shuts_down_starts_no_engine():
    fleet = make("small", "other")
    waits = asyncio.create_task(use(fleet, "small"))
    await asyncio.sleep(0)
    await fleet.shutdown()
    with pytest.raises(EngineDeadError, match="shutting down"):
        await waits
    with pytest.raises(EngineDeadError, match="shutting down"):
        await use(fleet, "other")
    assert not FakeEngine.alive
