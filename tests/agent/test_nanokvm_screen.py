"""The screen of a NanoKVM: resting, changing, broken, gone."""

import json

import pytest

from pagoda_agent.base.errors import DriverError, NoSignalError
from tests.agent.fakes.nanokvm import NANOKVM, PRO, FakeNanoKvm
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import until
from tests.agent.opened import opened


def status(result: int, message: str = "") -> str:
    body = {"ok": result >= 0, "result": result, "message": message, "mode": "mjpeg"}
    return json.dumps({"type": "capture-status", "data": json.dumps(body)})


async def test_a_picture_that_came_after_it_was_asked_for():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        first = await driver.screenshot()
        kvm.screen.draw("red")
        await driver.screenshot()
        second = await driver.screenshot()
        assert first.image.getpixel((80, 80))[2] > 80 and not first.stale
        red, green, blue = second.image.getpixel((80, 80))
        assert red > 200 and green < 60 and blue < 60 and not second.stale
        assert second.number > first.number and second.received_at > first.received_at


async def test_a_resting_screen_is_asked_to_show_itself():
    kvm = FakeNanoKvm(Still())
    kvm.stream.detects = True
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.screenshot()
        assert not (await driver.screenshot()).stale
        assert kvm.posts == [("/api/stream/mjpeg/detect/stop", {"duration": 10})]
        for _ in range(3):
            assert not (await driver.screenshot()).stale
        assert len(kvm.posts) == 1


@pytest.mark.parametrize("firmware", [NANOKVM, PRO], ids=["nanokvm", "pro"])
async def test_where_nothing_comes_the_last_picture_is_marked_stale(firmware):
    kvm = FakeNanoKvm(Still(), firmware)
    kvm.stream.rests = True
    async with kvm.run(), opened(kvm.url()) as driver:
        await until(lambda: driver._video.newest, "the first picture")
        stale = await driver.screenshot()
        assert stale.stale and stale.size == (320, 200)
        assert (await driver.screenshot()).number == stale.number
        kvm.stream.rests = False
        fresh = await driver.screenshot()
        assert not fresh.stale and fresh.number > stale.number


async def test_the_size_is_that_of_each_picture():
    screen = Still((320, 200))
    kvm = FakeNanoKvm(screen)
    async with kvm.run(), opened(kvm.url()) as driver:
        assert (await driver.screenshot()).size == (320, 200)
        screen.image = screen.image.resize((400, 300))
        await driver.screenshot()
        assert (await driver.screenshot()).size == (400, 300)


async def test_no_picture_at_all(monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.nanokvm.driver._FIRST", 0.3)
    kvm = FakeNanoKvm(Still())
    kvm.stream.dead = True
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(NoSignalError, match="asleep"):
            await driver.screenshot()
        kvm.stream.dead = False
        assert not (await driver.screenshot()).stale


async def test_the_kvm_says_why_there_is_no_picture():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.screenshot()
        kvm.stream.dead = True
        await kvm.say(status(-6, "Unsupported HDMI resolution"))
        with pytest.raises(NoSignalError, match="Unsupported HDMI resolution"):
            await driver.screenshot()
        await kvm.say(status(0))
        await kvm.say(status(5))
        await until(lambda: driver._no_signal == "", "the good news")
        assert (await driver.screenshot()).stale
        await kvm.say(status(-1, "No image captured"))
        kvm.stream.dead = False
        assert not (await driver.screenshot()).stale


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"type": "capture-status"}', '{"type":"capture-status","data":"5"}',
     '{"type":"capture-status","data":"{\\"result\\":\\"x\\"}"}', "[" * 5000,
     '{"type":"hid-led-status","data":"{}"}'],
)  # fmt: skip
async def test_whatever_the_kvm_says_is_borne(text):
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await kvm.say(text)
        await driver.type_text("a")
        assert not (await driver.screenshot()).stale
        assert kvm.links == 1


async def test_a_black_picture_is_a_picture():
    kvm = FakeNanoKvm(Still())
    kvm.stream.shows = "black"
    async with kvm.run(), opened(kvm.url()) as driver:
        assert (await driver.screenshot()).is_black()


@pytest.mark.parametrize(
    ("shows", "says"),
    [
        ("cut", "broken JPEG"),
        ("html", "a web page instead"),
        ("empty", "nothing instead"),
        ("sizeless", "broken JPEG"),
    ],
)
async def test_what_is_no_picture_is_an_error_until_one_comes(shows, says):
    kvm = FakeNanoKvm(Still())
    kvm.stream.shows = shows
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(DriverError, match=says):
            await driver.screenshot()
        kvm.stream.shows = "screen"
        await driver.screenshot()
        assert (await driver.screenshot()).size == (320, 200)


@pytest.mark.parametrize("length", ["right", "none", "short", "long"])
@pytest.mark.parametrize("piece", [0, 13])
async def test_streams_of_any_cut(length, piece):
    kvm = FakeNanoKvm(Still((64, 48)))
    kvm.stream.length, kvm.stream.piece, kvm.stream.fps = length, piece, 20
    async with kvm.run(), opened(kvm.url()) as driver:
        for _ in range(3):
            frame = await driver.screenshot()
            assert frame.size == (64, 48) and not frame.stale


async def test_a_stream_that_ends_is_asked_for_again():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        before = await driver.screenshot()
        kvm.stream.cut()
        await until(lambda: kvm.stream.clients == 2, "the next stream")
        after = await driver.screenshot()
        assert not after.stale and after.number > before.number


async def test_a_page_instead_of_a_stream(monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.nanokvm.driver._FIRST", 0.3)
    kvm = FakeNanoKvm(Still())
    kvm.stream.content_type = "text/html"
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(DriverError, match="'text/html', not one of pictures"):
            await driver.screenshot()
