"""A PiKVM's wire and screen."""

import asyncio
import json
import shutil

import pytest

from pagoda_agent.base.errors import (
    ConnectionLostError,
    DriverError,
    LoginError,
    NoSignalError,
    UntypeableError,
)
from pagoda_agent.input.actions import Point, Power
from pagoda_agent.input.keys import KEYS
from tests.agent.fakes.pikvm import FakePiKvm
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import self_signed, until
from tests.agent.opened import opened

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("pikvm"))


@pytest.fixture
async def pikvm(certificate):
    async with FakePiKvm(Still()).run(certificate) as fake:
        fake.options = f"?fingerprint={certificate.fingerprint}"
        yield fake


def event(kind: str, **values) -> dict:
    return {"event_type": kind, "event": values}


async def test_events(pikvm):
    async with opened(pikvm.url(pikvm.options)) as driver:
        await driver.click(Point(0, 1), "back", 1, ("ControlLeft",))
        await driver.scroll(None, 2, -1, ())
        await driver.type_text("A")
        await until(lambda: len(pikvm.events) == 12, "the events")
    assert [json.loads(text) for text in pikvm.events] == [
        event("key", key="ControlLeft", state=True),
        event("mouse_move", to={"x": -32768, "y": 32767}),
        event("mouse_button", button="up", state=True),
        event("mouse_button", button="up", state=False),
        event("key", key="ControlLeft", state=False),
        event("mouse_wheel", delta={"x": 0, "y": -1}),
        event("mouse_wheel", delta={"x": 1, "y": 0}),
        event("mouse_wheel", delta={"x": 1, "y": 0}),
        event("key", key="ShiftLeft", state=True),
        event("key", key="KeyA", state=True),
        event("key", key="KeyA", state=False),
        event("key", key="ShiftLeft", state=False),
    ]
    assert pikvm.links == 1


async def test_every_key_arrives(pikvm):
    async with opened(pikvm.url(pikvm.options)) as driver:
        for code in KEYS:
            await driver.key_down(code)
            await driver.key_up(code)
        await until(lambda: len(pikvm.screen.events) == 2 * len(KEYS), "all keys")


async def test_the_screen_now(pikvm):
    async with opened(pikvm.url(pikvm.options)) as driver:
        first = await driver.screenshot()
        pikvm.screen.draw("red")
        second = await driver.screenshot()
        assert first.size == (320, 200) and second.number == first.number + 1
        assert second.image.getpixel((80, 80))[0] > 200 > first.image.getpixel((80, 80))[0]
        assert not second.stale


async def test_no_signal(pikvm):
    async with opened(pikvm.url(pikvm.options)) as driver:
        pikvm.offline = True
        with pytest.raises(NoSignalError):
            await driver.screenshot()
        pikvm.offline = False
        await driver.screenshot()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "nothing instead"),
        (b"<!DOCTYPE html><html></html>", "a web page instead"),
        (b"\x00\x00\x00\x01\x67\x42" * 99, "594 bytes of something else"),
        (b"\xff\xd8\xff\xe0" + bytes(200), "broken JPEG"),
    ],
)
async def test_what_is_no_picture(pikvm, body, says):
    async with opened(pikvm.url(pikvm.options)) as driver:
        pikvm.snapshot_bytes = body
        with pytest.raises(DriverError, match=says):
            await driver.screenshot()


@pytest.mark.parametrize("password", ["wrong", "", "fälsch"])
async def test_a_wrong_password(pikvm, password, monkeypatch):
    monkeypatch.delenv("PAGODA_DRIVER_PASSWORD", raising=False)
    pikvm_url = f"pikvm://admin:{password}@127.0.0.1:{pikvm.port}{pikvm.options}"
    with pytest.raises(LoginError, match="refused the password of 'admin'"):
        async with opened(pikvm_url):
            pass
    assert pikvm.links == 0


@pytest.mark.parametrize("password", ["pä中ss", "with:colon"])
async def test_any_password(pikvm, password):
    pikvm.password = password
    async with opened(pikvm.url(pikvm.options)) as driver:
        await driver.screenshot()
    assert pikvm.links == 1


async def test_a_relative_mouse_is_refused(pikvm):
    pikvm.relative = True
    with pytest.raises(DriverError, match="absolute"):
        async with opened(pikvm.url(pikvm.options)):
            pass


@pytest.mark.parametrize(
    ("action", "button"), [("press", "power"), ("hold", "power_long"), ("reset", "reset")]
)
async def test_power(pikvm, action, button):
    async with opened(pikvm.url(pikvm.options)) as driver:
        await driver.power(Power(action))
        assert pikvm.posts == [f"/api/atx/click?button={button}"]
        pikvm.busy = True
        with pytest.raises(DriverError, match="busy"):
            await driver.power(Power(action))


async def test_hid_reset(pikvm):
    async with opened(pikvm.url(pikvm.options)) as driver:
        await driver.hid_reset()
        assert pikvm.posts == ["/api/hid/reset"]


async def test_characters_beyond_the_layout(pikvm):
    async with opened(pikvm.url(f"{pikvm.options}&layout=fr")) as driver:
        with pytest.raises(UntypeableError) as caught:
            await driver.type_text("é中~")
        assert caught.value.characters == ("中", "~")
        await asyncio.sleep(0.05)
        assert pikvm.events == []


async def test_lost_in_the_middle_of_a_drag(pikvm):
    pikvm.drop_after = 6
    async with opened(pikvm.url(pikvm.options)) as driver:
        with pytest.raises(ConnectionLostError):
            await driver.drag((Point(0, 0), Point(1, 1)), "left", ("ShiftLeft",))
        await driver.release_all()
        assert driver.held == () and pikvm.links == 2
        await until(
            lambda: (
                ("button", 1, False) in pikvm.screen.events
                and ("key", 42, False) in pikvm.screen.events
            ),
            "the release",
        )
        assert pikvm.screen.events.count(("button", 1, True)) == 1


async def test_a_password_that_was_changed_is_not_tried_for_ever(pikvm, monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._PATIENCE", 0.5)
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._RETRIES", (0.01,))
    pikvm.drop_after = 3
    async with opened(pikvm.url(pikvm.options)) as driver:
        pikvm.password = "changed"
        with pytest.raises(ConnectionLostError, match="refused the session"):
            await driver.type_text("abcdefgh")
        assert pikvm.refusals == 1


async def test_a_heartbeat(pikvm, monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._HEARTBEAT", 0.05)
    async with opened(pikvm.url(pikvm.options)):
        await until(lambda: pikvm.pings >= 2, "pings")
