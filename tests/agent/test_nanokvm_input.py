"""Keys and pointer on a NanoKVM's wire, byte by byte."""

import asyncio
import itertools

import pytest

from pagoda_agent.base.errors import DriverError, UnsupportedActionError, UntypeableError
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.input.actions import Point, Power
from tests.agent.fakes.nanokvm import NANOKVM, OLD_NANOKVM, OLD_PRO, PRO, FakeNanoKvm, Firmware
from tests.agent.fakes.screens import Still
from tests.agent.fakes.site import until
from tests.agent.opened import opened

UP = bytes([1]) + bytes(8)
RELATIVE_UP = bytes.fromhex("02 00 00 00 00")


async def sent(kvm: FakeNanoKvm, count: int) -> list:
    """What came after the greeting, `count` messages of it."""
    await until(lambda: len(kvm.hid) >= count + 2, f"{count} messages, got {len(kvm.hid) - 2}")
    await asyncio.sleep(0.05)
    return kvm.hid[2:]


async def script(driver) -> None:
    await driver.click(Point(0.5, 0.5), "left", 1, ())
    await driver.chord(("ControlLeft", "AltLeft", "Delete"))
    await driver.type_text("aB")
    await driver.scroll(None, 0, -1, ())
    await driver.scroll(Point(0, 1), 0, 2, ())
    await driver.click(None, "right", 2, ("ShiftLeft",))


async def test_reports():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await script(driver)
        messages = await sent(kvm, 25)
        assert kvm.hid[:2] == [UP, RELATIVE_UP]
    expected = """
        02 00 00 40 00 40 00     02 01 00 40 00 40 00     02 00 00 40 00 40 00
        01 01 00 00 00 00 00 00 00    01 05 00 00 00 00 00 00 00    01 05 00 4c 00 00 00 00 00
        01 05 00 00 00 00 00 00 00    01 01 00 00 00 00 00 00 00    01 00 00 00 00 00 00 00 00
        01 00 00 04 00 00 00 00 00    01 00 00 00 00 00 00 00 00
        01 02 00 00 00 00 00 00 00    01 02 00 05 00 00 00 00 00
        01 02 00 00 00 00 00 00 00    01 00 00 00 00 00 00 00 00
        02 00 00 40 00 40 ff
        02 00 01 00 ff 7f 00     02 00 01 00 ff 7f 01     02 00 01 00 ff 7f 01
        01 02 00 00 00 00 00 00 00
        02 02 01 00 ff 7f 00     02 00 01 00 ff 7f 00
        02 02 01 00 ff 7f 00     02 00 01 00 ff 7f 00
        01 00 00 00 00 00 00 00 00
    """
    assert b"".join(messages).hex() == "".join(expected.split())


async def test_arrays_of_old_firmware():
    kvm = FakeNanoKvm(Still(), OLD_NANOKVM)
    async with kvm.run(), opened(kvm.url()) as driver:
        await script(driver)
        messages = await sent(kvm, 25)
        assert kvm.hid[:2] == ["[1, 0, 0, 0, 0, 0]", "[2, 0, 0, 0, 0]"]
    assert messages == [
        "[2, 2, 0, 16384, 16384]", "[2, 1, 1, 0, 0]", "[2, 0, 0, 0, 0]",
        "[1, 224, 1, 0, 0, 0]", "[1, 226, 1, 0, 4, 0]", "[1, 76, 1, 0, 4, 0]",
        "[1, 226, 1, 0, 4, 0]", "[1, 224, 1, 0, 0, 0]", "[1, 0, 0, 0, 0, 0]",
        "[1, 4, 0, 0, 0, 0]", "[1, 0, 0, 0, 0, 0]",
        "[1, 225, 0, 2, 0, 0]", "[1, 5, 0, 2, 0, 0]", "[1, 225, 0, 2, 0, 0]", "[1, 0, 0, 0, 0, 0]",
        "[2, 4, 0, 0, 1]",
        "[2, 2, 0, 1, 32767]", "[2, 4, 0, 0, -1]", "[2, 4, 0, 0, -1]",
        "[1, 225, 0, 2, 0, 0]", "[2, 1, 2, 0, 0]", "[2, 0, 0, 0, 0]", "[2, 1, 2, 0, 0]",
        "[2, 0, 0, 0, 0]", "[1, 0, 0, 0, 0, 0]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("application", "hardware", "binary"),
    [
        ("2.3.2", "Beta", True), ("2.3.1", "Beta", False), ("2.10.0", "PCIE", True),
        ("v2.2.9", None, False), ("1.4.2", "Alpha", False), ("1.2.6", "Pro", True),
        ("1.2.5", "Pro", False), ("1.2.13", "Pro", True), ("", "Beta", True),
        ("dev-build", None, True), ("2.5.1-beta", "Beta", True),
    ],
)  # fmt: skip
async def test_the_version_decides_which(application, hardware, binary):
    speaks = "binary" if binary else "json"
    kvm = FakeNanoKvm(Still(), Firmware(application, hardware, speaks=speaks))
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.type_text("a")
        await until(lambda: kvm.screen.events == [("key", 30, True), ("key", 30, False)], "a")
        assert all(isinstance(message, bytes) == binary for message in kvm.hid)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.25, 0.5, 0.75, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("firmware", [NANOKVM, OLD_NANOKVM])
async def test_positions_stay_in_the_devices_range(share, firmware):
    kvm = FakeNanoKvm(Still(), firmware)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.move(Point(share, 1 - share))
        await until(lambda: kvm.screen.events, "the move")
        _, x, y = kvm.screen.events[-1]
        assert 1 / 0x7FFF <= x <= 1 and 1 / 0x7FFF <= y <= 1
        assert abs(x - share) < 1e-4 and abs(y - (1 - share)) < 1e-4


@pytest.mark.parametrize("firmware", [NANOKVM, OLD_NANOKVM, PRO, OLD_PRO])
async def test_modifiers_are_down_around_clicks(firmware):
    kvm = FakeNanoKvm(Still(), firmware)
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.click(Point(0.5, 0.5), "left", 2, ("ControlLeft", "ShiftLeft"))
        await until(lambda: kvm.screen.events[-1] == ("key", 29, False), "the end")
        events = [event for event in kvm.screen.events if event[0] != "move"]
        assert events == [
            ("key", 29, True), ("key", 42, True),
            *[("button", 1, True), ("button", 1, False)] * 2,
            ("key", 42, False), ("key", 29, False),
        ]  # fmt: skip


async def test_keyboard_and_mouse_are_apart_in_time():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        gaps = []
        driver._link.send = timed(driver._link.send, gaps)
        await driver.click(Point(0.5, 0.5), "left", 1, ("ControlLeft",))
        await driver.type_text("a")
        await driver.scroll(None, 0, 1, ())
        assert len(gaps) > 7


def timed(send, gaps):
    """`send`, which checks the pause before each change of device."""
    loop = asyncio.get_running_loop()
    last: list = [None, 0.0]

    async def checked(message, device):
        await send(message, device)
        now = loop.time()
        if last[0] not in (None, device):
            assert now - last[1] >= 0.0195, (last, device, now - last[1])
        gaps.append(now - last[1])
        last[:] = device, now

    return checked


async def test_a_pointer_of_which_nobody_knows_the_place_clicks_where_it_is():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        assert await driver.pointer() is None
        await driver.click(None, "left", 1, ())
        await driver.scroll(None, 0, -1, ())
        await driver.press("left")
        await driver.move(Point(1, 1))
        await driver.release("left")
        messages = await sent(kvm, 7)
    assert [message.hex(" ") for message in messages] == [
        "02 01 00 00 00", "02 00 00 00 00", "02 00 00 00 ff", "02 01 00 00 00",
        "02 01 ff 7f ff 7f 00", "02 00 00 00 00", "02 00 ff 7f ff 7f 00",
    ]  # fmt: skip
    presses = [event for event in kvm.screen.events if event[0] == "button"]
    assert presses == [("button", 1, pressed) for pressed in (True, False, True, False)]


async def test_every_button_is_its_bit():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.move(Point(0, 0))
        for button in ("left", "right", "middle", "back", "forward"):
            await driver.press(button)
        for button in ("left", "right", "middle", "back", "forward"):
            await driver.release(button)
        messages = await sent(kvm, 11)
    assert [message[1] for message in messages] == [0, 1, 3, 7, 15, 31, 30, 28, 24, 16, 0]


async def test_six_keys_and_not_seven():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        for code in ("KeyA", "KeyB", "KeyC", "KeyD", "KeyE", "KeyF", "ControlRight"):
            await driver.key_down(code)
        with pytest.raises(UnsupportedActionError, match="6 keys"):
            await driver.key_down("KeyG")
        await driver.release_all()
        assert driver.held == ()
        messages = await sent(kvm, 13)
    assert messages[6].hex(" ") == "01 10 00 04 05 06 07 08 09"
    assert messages[-1] == UP


async def test_what_old_firmware_cannot_do_is_refused():
    kvm = FakeNanoKvm(Still(), OLD_NANOKVM)
    async with kvm.run(), opened(kvm.url()) as driver:
        with pytest.raises(UnsupportedActionError, match="update it"):
            await driver.click(Point(0, 0), "back", 1, ())
        with pytest.raises(UnsupportedActionError, match="update it"):
            await driver.chord(("KeyA", "KeyB"))
        await driver.release_all()
        assert driver.held == ()
        await until(lambda: kvm.computer.held == (set(), 0), "everything up")


async def test_nothing_is_typed_where_a_character_cannot_be():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url("?layout=de")) as driver:
        with pytest.raises(UntypeableError) as caught:
            await driver.type_text("ok ä 中€文")
        assert caught.value.characters == ("中", "文")
        with pytest.raises(UnsupportedActionError, match="horizontal"):
            await driver.scroll(Point(0, 0), 1, 0, ())
        assert await sent(kvm, 0) == []


async def test_dead_keys_are_strokes_of_their_own():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url("?layout=de")) as driver:
        await driver.type_text("zê@")
        messages = await sent(kvm, 10)
    assert [(message[1], message[3]) for message in messages] == [
        (0, 0x1C), (0, 0), (0, 0x35), (0, 0), (0, 0x08), (0, 0),
        (0x40, 0), (0x40, 0x14), (0x40, 0), (0, 0),
    ]  # fmt: skip


async def test_a_heartbeat_keeps_the_connection(monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.kvm.link._HEARTBEAT", 0.05)
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()):
        await until(lambda: kvm.heartbeats >= 3, "heartbeats")
        assert kvm.links == 1 and len(kvm.hid) == 2


async def test_no_message_is_empty():
    """One would end a Pro's server."""
    kvm = FakeNanoKvm(Still(), PRO)
    async with kvm.run():
        async with opened(kvm.url()) as driver:
            await script(driver)
        assert all(kvm.hid)


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("press", {"type": "power", "duration": 800}),
        ("hold", {"type": "power", "duration": 5000}),
        ("reset", {"type": "reset", "duration": 800}),
    ],
)
async def test_power(action, body):
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.power(Power(action))
        assert kvm.posts == [("/api/vm/gpio", body)]
        assert driver.capabilities.power and driver.capabilities.delay == 0.3


async def test_a_driver_that_is_not_open_says_so():
    driver = make_driver("nanokvm://h")
    for call in (driver.screenshot(), driver.power(Power("press")), driver.key_down("KeyA")):
        with pytest.raises(DriverError, match="not open"):
            await call
    await driver.close()


async def test_hid_reset():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.hid_reset()
        assert kvm.posts == [("/api/hid/reset", {})]


async def test_a_drag_is_steps_with_the_button_down():
    kvm = FakeNanoKvm(Still())
    async with kvm.run(), opened(kvm.url()) as driver:
        await driver.drag((Point(0, 0), Point(1, 0.5)), "left", ())
        messages = await sent(kvm, 15)
    assert [message[1] for message in messages] == [0, *[1] * 13, 0]
    places = [int.from_bytes(message[2:4], "little") for message in messages[1:]]
    assert all(before <= after for before, after in itertools.pairwise(places))
    assert len(set(places)) >= 8 and places[-1] == 0x7FFF
