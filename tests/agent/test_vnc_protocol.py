"""The VNC driver byte by byte: encodings, and servers that are broken or hostile."""

import asyncio
import struct
import tracemalloc
import zlib

import pytest

from pagoda_agent.base.errors import (
    ConnectionLostError,
    DriverError,
    LoginError,
    NoSignalError,
    UntypeableError,
)
from pagoda_agent.drivers.vnc import connection
from pagoda_agent.drivers.vnc.security import answer
from pagoda_agent.input.actions import Point
from tests.agent.rig.fake_vnc import fake_vnc, greeting, pixels, rectangle, says, update

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
SIZE = (8, 4)
WHOLE = (0, 0, *SIZE)
RAW, COPY, ZLIB, CURSOR, NEW_SIZE, NEW_LAYOUT = 0, 1, 6, -239, -223, -308
FULL_RED = update(rectangle(WHOLE, RAW, pixels(32, RED)))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Servers here never send later what they did not send at once."""
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(connection, "_ECHO_SECONDS", 0)
    monkeypatch.setattr(connection, "_PICTURE_TRIES", 1)
    monkeypatch.setattr("pagoda_agent.drivers.vnc.driver._TRIES", (0.0,))


def test_the_challenge_is_answered_with_des():
    # FIPS 81, table B1: the key 0123456789abcdef. VNC reverses the bits of each byte.
    key = bytes(int(f"{byte:08b}"[::-1], 2) for byte in bytes.fromhex("0123456789abcdef"))
    encrypted = answer(b"Now is the time ", key.decode("latin-1"))
    assert encrypted.hex() == "3fa40e8a984d48156a271787ab8883f9"


def test_passwords_are_cut_and_filled_as_others_do():
    challenge = bytes(range(16))
    assert answer(challenge, "longer than eight") == answer(challenge, "longer t")
    assert answer(challenge, "") == answer(challenge, "\0" * 8)
    assert answer(challenge, "a") != answer(challenge, "b")


async def picture(*messages):
    """What the driver shows after the messages of a server with a screen of 8 x 4."""
    async with fake_vnc(says(greeting(SIZE) + b"".join(messages), stays=True)) as driver:
        await driver.open()
        return (await driver.screenshot()).image


def deflated(stream, data):
    part = stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)
    return struct.pack(">I", len(part)) + part


async def test_raw_and_copied_rectangles():
    image = await picture(
        FULL_RED,
        update(rectangle((2, 1, 2, 2), RAW, pixels(4, GREEN))),
        # Overlaps its source.
        update(rectangle((3, 1, 2, 2), COPY, struct.pack(">HH", 2, 1))),
    )
    assert image.size == SIZE
    green = {(x, y) for x in range(8) for y in range(4) if image.getpixel((x, y)) == GREEN}
    assert green == {(x, y) for x in (2, 3, 4) for y in (1, 2)}
    assert image.getpixel((5, 1)) == RED


async def test_one_zlib_stream_through_all_rectangles():
    stream = zlib.compressobj()
    image = await picture(
        update(
            rectangle((0, 0, 8, 2), ZLIB, deflated(stream, pixels(16, RED))),
            rectangle((0, 2, 8, 2), ZLIB, deflated(stream, pixels(16, GREEN))),
        ),
        update(rectangle((0, 0, 1, 1), ZLIB, deflated(stream, pixels(1, BLUE)))),
    )
    assert image.getpixel((0, 0)) == BLUE
    assert image.getpixel((7, 0)) == RED
    assert image.getpixel((7, 3)) == GREEN


async def test_what_is_of_no_use_is_skipped():
    image = await picture(
        b"\x02",  # the bell
        struct.pack(">BxHH", 1, 0, 3) + bytes(18),  # a colour map
        struct.pack(">BxxxI", 3, 5) + b"hello",  # a clipboard
        update(rectangle((1, 1, 9, 2), CURSOR, bytes(9 * 2 * 4 + 2 * 2))),
        FULL_RED,
    )
    assert image.getpixel((0, 0)) == RED


async def test_new_sizes_in_both_ways():
    image = await picture(
        FULL_RED,
        update(rectangle((0, 0, 3, 2), NEW_SIZE)),
        update(rectangle((0, 0, 3, 2), RAW, pixels(6, GREEN))),
        # Refused to another client: the size stays.
        update(rectangle((1, 1, 9, 9), NEW_LAYOUT, struct.pack(">B3x", 1) + bytes(16))),
    )
    assert image.size == (3, 2)
    assert image.getpixel((2, 1)) == GREEN


async def test_a_server_that_says_nothing_new_gives_a_stale_picture():
    async with fake_vnc(says(greeting(SIZE) + FULL_RED, stays=True)) as driver:
        await driver.open()
        await driver.screenshot()
        frame = await driver.screenshot()
        assert frame.stale
        assert frame.image.getpixel((0, 0)) == RED


@pytest.mark.parametrize("version", [b"003.003", b"003.005", b"003.007"])
async def test_old_versions_without_a_password(version):
    rest = greeting(SIZE)[18:]
    security = struct.pack(">I", 1) if version < b"003.007" else b"\x01\x01"
    said = b"RFB " + version + b"\n" + security + rest + FULL_RED
    async with fake_vnc(says(said, stays=True)) as driver:
        await driver.open()
        assert (await driver.screenshot()).image.getpixel((0, 0)) == RED


async def test_no_picture_and_no_screen():
    async with fake_vnc(says(greeting(SIZE), stays=True)) as driver:
        await driver.open()
        with pytest.raises(DriverError, match="no picture"):
            await driver.screenshot()
    async with fake_vnc(says(greeting((0, 0)), stays=True)) as driver:
        await driver.open()
        with pytest.raises(NoSignalError, match="is the computer on"):
            await driver.screenshot()


async def test_a_black_picture_is_known_as_such():
    async with fake_vnc(
        says(greeting(SIZE) + update(rectangle(WHOLE, RAW, bytes(128))), stays=True)
    ) as driver:
        await driver.open()
        assert (await driver.screenshot()).is_black()


@pytest.mark.parametrize(
    "said, error, message",
    [
        (b"<!DOCTYPE html><html>", DriverError, "no VNC server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", DriverError, "no VNC server"),
        (b"RFB 003.008\n\x00" + struct.pack(">I", 9) + b"too often", DriverError, "too often"),
        (b"RFB 003.003\n" + struct.pack(">II", 0, 4) + b"full", DriverError, "full"),
        (b"RFB 003.003\n" + struct.pack(">I", 4000), DriverError, "type 4000"),
        (b"RFB 003.889\n\x02\x1e\x21", DriverError, "Apple's login.*settings of Screen Sharing"),
        (b"RFB 003.008\n\x01\x13", DriverError, "VeNCrypt"),
        (b"RFB 005.000\n\x01\x05", DriverError, "RA2"),
        (b"RFB 003.008\n\x01\x63", DriverError, "type 99"),
        (b"RFB 003.008\n\x01\x02", LoginError, "PAGODA_DRIVER_PASSWORD"),
        (b"RFB 003.008\n\x01\x01" + struct.pack(">II", 1, 4) + b"nope", LoginError, "nope"),
        (b"RFB 003.008\n\x00\xff\xff\xff\xff", DriverError, "4,294,967,295"),
        (greeting((65535, 65535)), DriverError, "65535 x 65535"),
        (greeting(SIZE)[:-8] + b"\xff\xff\xff\xff", DriverError, "4,294,967,295"),
    ],
)
async def test_greetings_that_cannot_be_used(said, error, message):
    async with fake_vnc(says(said)) as driver:
        with pytest.raises(error, match=message):
            await driver.open()


@pytest.mark.parametrize("length", range(len(greeting(SIZE))))
async def test_a_greeting_that_is_cut_anywhere(length):
    async with fake_vnc(says(greeting(SIZE)[:length])) as driver:
        with pytest.raises(DriverError, match="closed the connection before"):
            await driver.open()


async def test_a_server_that_is_silent(monkeypatch):
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.2)
    async with fake_vnc(says(b"RFB 003", stays=True)) as driver:
        with pytest.raises(DriverError, match="does not answer"):
            await driver.open()


BOMB = zlib.compress(bytes(50_000_000))
HOSTILE = {
    "an unknown message": b"\x2a",
    "an unknown encoding": update(rectangle(WHOLE, 16, bytes(100))),
    "a rectangle beside the screen": update(rectangle((7, 0, 2, 1), RAW, bytes(8))),
    "a rectangle below the screen": update(rectangle((0, 65535, 1, 1), RAW, bytes(4))),
    "a copy from beside the screen": update(
        rectangle((0, 0, 2, 2), COPY, struct.pack(">HH", 7, 0))
    ),
    "a screen of 65535 x 65535": update(rectangle((0, 0, 65535, 65535), NEW_SIZE)),
    "zlib that is none": update(rectangle(WHOLE, ZLIB, struct.pack(">I", 3) + b"abc")),
    "zlib that is too short": update(
        rectangle(WHOLE, ZLIB, deflated(zlib.compressobj(), bytes(127)))
    ),
    "zlib that is too long": update(
        rectangle(WHOLE, ZLIB, deflated(zlib.compressobj(), bytes(129)))
    ),
    "a zlib bomb": update(rectangle(WHOLE, ZLIB, struct.pack(">I", 1100) + BOMB[:1100])),
    "zlib of 4 GiB": update(rectangle(WHOLE, ZLIB, b"\xff\xff\xff\xff")),
    "an update that is cut": FULL_RED[:60],
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_messages_that_end_the_connection(kind):
    tracemalloc.start()
    try:
        async with fake_vnc(says(greeting(SIZE) + HOSTILE[kind])) as driver:
            await driver.open()
            with pytest.raises(ConnectionLostError):
                await driver.screenshot()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


async def test_a_picture_that_is_cut_is_not_shown():
    """Half of a new picture, then the end: the driver connects again and shows a whole one."""
    connections = []

    async def talk(reader, writer):
        connections.append(writer)
        whole = len(connections) > 1
        message = FULL_RED if whole else FULL_RED[:-50]
        await says(greeting(SIZE) + message, stays=whole)(reader, writer)

    async with fake_vnc(talk) as driver:
        await driver.open()
        frame = await driver.screenshot()
        assert len(connections) == 2
        assert {colour for _, colour in frame.image.getcolors()} == {RED}


def key(keysym, down):
    return struct.pack(">BBHI", 4, down, 0, keysym)


def listener(heard: bytearray):
    """A server that writes down what it hears of pointer and keys."""

    async def talk(reader, writer):
        writer.write(greeting((800, 600)))
        await reader.readexactly(14)  # version, security, shared
        while True:
            kind = await reader.readexactly(1)
            data = await reader.readexactly({0: 19, 2: 27, 3: 9, 4: 7, 5: 5}[kind[0]])
            if kind[0] in (4, 5):
                heard.extend(kind + data)

    return talk


async def heard_all(heard: bytearray, expected: bytes) -> None:
    async with asyncio.timeout(20):
        while not heard.endswith(expected):
            await asyncio.sleep(0.01)


async def test_what_is_sent():
    """The bytes of pointer and keys, as RFC 6143 has them in 7.5.4 and 7.5.5."""
    heard = bytearray()

    def pointer(buttons):
        return struct.pack(">BBHH", 5, buttons, 400, 300)

    keys = [(0xFFE1, 1), (0x41, 1), (0x41, 0), (0xFFE1, 0)]
    # The Euro sign is not the one of Unicode, as on X.Org's layouts.
    keys += [(keysym, down) for keysym in (0xE9, 0x20AC, 0xFF0D) for down in (1, 0)]
    expected = (
        key(0xFFE1, 1) + pointer(0) + pointer(4) + pointer(0) + key(0xFFE1, 0)
        + pointer(8) + pointer(0)
        + b"".join(key(keysym, down) for keysym, down in keys)
    )  # fmt: skip

    async with fake_vnc(listener(heard), options="layout=fr") as driver:
        await driver.open()
        await driver.click(Point(0.5, 0.5), "right", 1, ("ShiftLeft",))
        await driver.scroll(None, 0, 1, ())
        await driver.chord(["ShiftLeft", "KeyA"])
        await driver.type_text("é€\n")
        await heard_all(heard, expected)


async def test_servers_that_have_characters_and_not_keys_get_any():
    heard = bytearray()
    async with fake_vnc(listener(heard), options="unicode=1") as driver:
        assert driver.capabilities.unicode
        await driver.open()
        await driver.type_text("é中")
        signs = [(keysym, down) for keysym in (0xE9, 0x01004E2D) for down in (1, 0)]
        await heard_all(heard, b"".join(key(keysym, down) for keysym, down in signs))
        with pytest.raises(UntypeableError):
            await driver.type_text("\ud800")
