"""The connection to keys and pointer, lost in the middle."""

import asyncio

import pytest

from pagoda_agent.base.errors import ConnectionLostError
from pagoda_agent.input.actions import Point
from tests.agent.fakes.nanokvm import NANOKVM, OLD_NANOKVM, PRO, FakeNanoKvm
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import until
from tests.agent.opened import opened

FIRMWARES = pytest.mark.parametrize(
    "firmware", [NANOKVM, OLD_NANOKVM, PRO], ids=["nanokvm", "old", "pro"]
)
PATH = (Point(0.1, 0.1), Point(0.9, 0.9))


async def everything_is_up(kvm: FakeNanoKvm) -> None:
    await until(lambda: kvm.computer.held == (set(), 0), "everything up")


@FIRMWARES
async def test_in_the_middle_of_a_drag(firmware):
    kvm = FakeNanoKvm(Still(), firmware, drop_after=9)
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(ConnectionLostError, match="done in part"):
            await driver.drag(PATH, "left", ("ControlLeft",))
        await driver.release_all()
        assert driver.held == () and kvm.links == 2
        await everything_is_up(kvm)
        # Once up to its middle, and nothing of the rest.
        presses = [event for event in kvm.screen.events if event == ("button", 1, True)]
        assert len(presses) == 1
        moves = [event for event in kvm.screen.events if event[0] == "move"]
        assert all(x < 0.7 for _, x, _ in moves)
        await driver.click(Point(0.5, 0.5), "left", 1, ())
        await until(lambda: kvm.screen.events.count(("button", 1, True)) == 2, "the next click")
        assert kvm.links == 2


@FIRMWARES
@pytest.mark.parametrize("drop_after", [10, 11])
async def test_in_the_middle_of_typing(firmware, drop_after):
    kvm = FakeNanoKvm(Still(), firmware, drop_after=drop_after)
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(ConnectionLostError):
            await driver.type_text("abcdefghijklmnopqrstuvwxyz")
        await driver.release_all()
        assert driver.held == () and kvm.links == 2
        await everything_is_up(kvm)
        pressed = [code for kind, code, down in kvm.screen.events if kind == "key" and down]
        # A to E: each once, and nothing after the connection went.
        letters = [30, 48, 46, 32, 18]
        assert pressed == letters[: len(pressed)] and len(pressed) >= 4
        await driver.type_text("z")
        await until(lambda: kvm.screen.events[-1] == ("key", 44, False), "the next character")


async def test_a_session_that_was_revoked_in_the_middle():
    kvm = FakeNanoKvm(Still(), drop_after=6, close_code=4401)
    async with kvm.run(), opened(kvm.url()) as driver:
        kvm.revoke()
        with pytest.raises(ConnectionLostError):
            await driver.type_text("abcdefgh")
        assert len(kvm.logins) == 2 and kvm.links == 2
        await everything_is_up(kvm)


async def test_while_nothing_is_done(monkeypatch):
    """Nobody needs to know."""
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._UNSURE", 0.0)
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.type_text("a")
        await kvm.cut()
        await until(lambda: kvm.links == 2, "the next connection")
        await driver.type_text("b")
        await until(lambda: kvm.screen.events[-1] == ("key", 48, False), "b")
        assert kvm.links == 2


async def test_right_after_an_action_the_next_one_says_that_it_may_be_lost():
    kvm = FakeNanoKvm(Still(), drop_after=4)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.type_text("a")
        await until(lambda: kvm.links == 2, "the next connection")
        with pytest.raises(ConnectionLostError):
            await driver.type_text("b")
        await driver.type_text("c")
        await until(lambda: kvm.screen.events[-1] == ("key", 46, False), "c")


async def test_for_good(monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._PATIENCE", 0.3)
    monkeypatch.setattr("pagoda_agent.drivers.base._RELEASE_SECONDS", 0.5)
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.press("left")
        kvm.refuse = True
        await kvm.cut()
        await until(lambda: not driver._link._ready.is_set(), "the loss to be seen")
        with pytest.raises(ConnectionLostError, match="could not be made again: .*503"):
            await driver.move(Point(0.5, 0.5))
        assert driver.held == ("left",)
        # It is still tried, and lets go as soon as there is a connection.
        kvm.refuse = False
        await until(lambda: driver.held == (), "the release")
        await everything_is_up(kvm)
        kvm.refuse = True
        await driver.press("right")
        await kvm.cut()


@pytest.mark.parametrize("firmware", [NANOKVM, PRO], ids=["nanokvm", "pro"])
async def test_cancelling_leaves_nothing_down(firmware):
    kvm = FakeNanoKvm(Still(), firmware)
    async with kvm.run(), opened(kvm.url()) as driver:
        typing = asyncio.create_task(driver.type_text("ABCDEFGH" * 600))
        await until(lambda: len(kvm.hid) > 20, "some of it")
        typing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await typing
        await driver.release_all()
        assert driver.held == ()
        await everything_is_up(kvm)
        count = len(kvm.hid)
        await asyncio.sleep(0.1)
        assert len(kvm.hid) == count


async def test_closing_lets_go_of_what_is_held():
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run():
        async with opened(kvm.url()) as driver:
            await driver.move(Point(0.5, 0.5))
            await driver.press("left")
            await driver.key_down("ShiftLeft")
            await until(lambda: kvm.computer.held == ({0xE1}, 1), "both down")
        await everything_is_up(kvm)
        await driver.close()
