"""The VNC driver on real servers: versions, passwords, new sizes, connections that are cut."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from PIL import ImageChops
from Xlib import display

from pagoda_agent.base.errors import ConnectionLostError, DriverError, LoginError, UntypeableError
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.input.actions import Point
from tests.agent.rig.desktop import require, start_desktop, start_x11vnc
from tests.agent.rig.stations import STATIONS, start_station
from tests.agent.rig.target import start_target


@pytest.fixture(scope="module")
def desktop(tmp_path_factory):
    with start_desktop(tmp_path_factory.mktemp("vnc"), "tigervnc") as desktop:
        yield desktop


@pytest.fixture(scope="module")
def target(desktop):
    with start_target(desktop) as target:
        yield target


@pytest.fixture
def clean(target):
    target.reset()
    return target


POEM = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"


class Proxy:
    """Between a driver and a server: connections that a test can cut."""

    def __init__(self, port):
        self.port = port
        self.accepts = True
        self.connections = 0
        self.writers = []

    async def serve(self, reader, writer):
        self.connections += 1
        if not self.accepts:
            writer.close()
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers += [writer, other_writer]
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self.pump(reader, other_writer), self.pump(other_reader, writer))

    async def pump(self, reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self):
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


def use_up_keys(desktop):
    """Give every free key a meaning, as a server does for a viewer with many signs."""
    x11 = display.Display(desktop.display)
    first = x11.display.info.min_keycode
    rows = x11.get_keyboard_mapping(first, x11.display.info.max_keycode - first + 1)
    for keycode, row in enumerate(rows, start=first):
        if not any(row):
            x11.change_keyboard_mapping(keycode, [(0x01002600 + keycode,) * 4])
    x11.sync()
    x11.close()


async def click_into_text(driver, target):
    await driver.click(target.middle("text"), "left", 1, ())
    await target.saw("the click", lambda state: state["releases"])


@asynccontextmanager
async def proxied(port):
    """A driver that is connected through a proxy: (driver, proxy)."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    driver = make_driver(f"vnc://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        await driver.open()
        yield driver, proxy
    finally:
        await driver.close()
        proxy.cut()
        server.close()


@pytest.mark.parametrize("version", ["3.3", "3.7", "3.8"])
async def test_passwords_in_all_versions(desktop, tmp_path, version, monkeypatch):
    there, file = tmp_path / "there", tmp_path / "file"
    there.write_text("sésame/?", encoding="latin-1")
    file.write_text("sésame/?\n", encoding="utf-8")
    file.chmod(0o600)
    with start_x11vnc(desktop, "-rfbversion", version, "-passwdfile", str(there)) as port:
        where = f"127.0.0.1:{port}"
        for url in (f"vnc://{where}?password-file={file}", f"vnc://:s%C3%A9same%2F%3F@{where}"):
            driver = make_driver(url)
            await driver.open()
            assert (await driver.screenshot()).size == desktop.size
            await driver.close()
        if version != "3.8":
            return
        driver = make_driver(f"vnc://{where}")
        with pytest.raises(LoginError, match="password-file"):
            await driver.open()
        monkeypatch.setenv("PAGODA_DRIVER_PASSWORD", "wrong")
        driver = make_driver(f"vnc://{where}")
        with pytest.raises(LoginError, match="Check the password") as caught:
            await driver.open()
        assert "wrong" not in str(caught.value)


async def test_security_that_is_not_supported_is_named(tmp_path):
    options = ("-SecurityTypes", "TLSNone")
    with start_desktop(tmp_path, "tigervnc", options=options) as desktop:
        driver = make_driver(f"vnc://127.0.0.1:{desktop.vnc_port}")
        with pytest.raises(DriverError, match="VeNCrypt.*-SecurityTypes VncAuth"):
            await driver.open()


async def test_a_server_that_is_not_there():
    with pytest.raises(DriverError, match="cannot be reached.*Check host and port"):
        await make_driver("vnc://127.0.0.1:1").open()  # port 5901 of a display, surely unused


async def test_the_picture_is_the_one_that_the_display_shows(desktop, clean):
    vnc = make_driver(f"vnc://127.0.0.1:{desktop.vnc_port}")
    x11 = make_driver(f"x11://{desktop.display}")
    await vnc.open()
    await x11.open()
    # TigerVNC draws the pointer where this client did not put it.
    await vnc.move(Point(0.1, 0.9))
    async with asyncio.timeout(60):
        while True:
            frames = (await vnc.screenshot()).image, (await x11.screenshot()).image
            if ImageChops.difference(*frames).getbbox() is None:
                break
    await vnc.close()
    await x11.close()


async def test_an_idle_screen_is_fresh_all_the_same(desktop, clean):
    driver = make_driver(f"vnc://127.0.0.1:{desktop.vnc_port}")
    await driver.open()
    frames = [await driver.screenshot() for _ in range(5)]
    assert not all(frame.stale for frame in frames)
    await driver.close()


async def test_a_new_size_is_known_before_the_next_action(tmp_path):
    require("xrandr")
    with start_desktop(tmp_path, "tigervnc") as desktop:
        driver = make_driver(f"vnc://127.0.0.1:{desktop.vnc_port}")
        await driver.open()
        for size in ((1024, 768), (1280, 720), (800, 600)):
            before = await driver.screenshot()
            desktop.run("xrandr", "--size", "{}x{}".format(*size))
            async with asyncio.timeout(60):
                while await driver.screen_size() == before.size:
                    await asyncio.sleep(0.02)
            assert await driver.screen_size() == size
            assert (await driver.screenshot()).size == size
            await driver.move(Point(0.75, 0.75))
            async with asyncio.timeout(60):
                while desktop.observer.pointer()[:2] != (size[0] * 0.75, size[1] * 0.75):
                    await asyncio.sleep(0.02)
        await driver.close()


@pytest.mark.parametrize("server", ["tigervnc", "x11vnc"])
async def test_signs_that_a_server_may_drop_are_refused(tmp_path, server):
    """It would lend keys to some, drop the others, and leave none for drivers that come later."""
    with start_station(server, tmp_path) as station:
        driver = make_driver(station.url)
        assert not driver.capabilities.unicode, "models are told"
        await driver.open()
        await click_into_text(driver, station.target)
        for text in (f"a{POEM}", "é"):
            with pytest.raises(UntypeableError, match="layout us.*nothing was typed") as caught:
                await driver.type_text(text)
            assert caught.value.characters == tuple(text.lstrip("a"))
        await driver.type_text("b")
        await station.target.saw("the letter", lambda state: state["text"] == "b")
        await driver.close()
        x11 = make_driver(f"x11://{station.desktop.display}")
        await x11.open()
        await x11.type_text(POEM)
        await station.target.saw("the poem", lambda state: state["text"] == f"b{POEM}")
        await x11.close()


@pytest.mark.parametrize("server", ["tigervnc", "x11vnc"])
async def test_signs_of_the_layout_arrive_where_no_key_is_free(tmp_path, server):
    require("setxkbmap")
    kind, reach = STATIONS[server]
    text = "äöüÄÖÜß§°²³µ€@{} ok"
    with start_desktop(tmp_path, kind) as desktop, start_target(desktop) as target:
        desktop.run("setxkbmap", "de")  # before x11vnc starts, which reads it once
        use_up_keys(desktop)
        with reach(desktop) as url:
            driver = make_driver(f"{url}?layout=de")
            await driver.open()
            await click_into_text(driver, target)
            # A letter and its accent apart are one key too.
            await driver.type_text(f"{text}a\u0308")
            await target.saw("the text", lambda state: state["text"] == f"{text}ä")
            with pytest.raises(UntypeableError, match="'ê' .*nothing was typed"):
                await driver.type_text("ê")  # takes a dead key
            await driver.close()


async def test_a_connection_that_is_cut_in_a_drag(desktop, clean):
    async with proxied(desktop.vnc_port) as (driver, proxy):
        send, moves, go_on = driver._send_move, [], asyncio.Event()

        async def wait_in_the_middle(to):
            moves.append(to)
            if len(moves) > 6:
                await go_on.wait()
            await send(to)

        driver._send_move = wait_in_the_middle
        path = [clean.share(100, 300), clean.share(600, 300)]
        drag = asyncio.create_task(driver.drag(path, "left", ("ShiftLeft",)))
        await clean.saw("the drag", lambda state: len(state["moves"]) > 4)
        proxy.cut()
        go_on.set()
        with pytest.raises(ConnectionLostError, match="released"):
            await drag
        assert driver.held == ()
        state = await clean.saw("the release", lambda state: state["releases"])
        assert len(state["presses"]) == 1, "nothing is done twice"
        assert state["releases"][0]["x"] < 600
        assert desktop.observer.pointer().buttons == frozenset()
        assert desktop.observer.keys_down() == frozenset()
        # What comes next works.
        assert (await driver.screenshot()).size == desktop.size
        await driver.click(clean.share(200, 400), "left", 1, ())
        await clean.saw("the click", lambda state: len(state["releases"]) == 2)


async def test_a_connection_that_is_cut_while_typing(desktop, clean):
    text = "0123456789" * 400
    async with proxied(desktop.vnc_port) as (driver, proxy):
        await click_into_text(driver, clean)
        typing = asyncio.create_task(driver.type_text(text))
        await clean.saw("some text", lambda state: len(state["text"]) > 20)
        proxy.cut()
        with pytest.raises(ConnectionLostError, match="part of which may be done"):
            await typing
        await driver.chord(["F12"])
        state = await clean.saw(
            "the next key",
            lambda state: (
                (state["keys"][-1]["keysym"], state["keys"][-1]["pressed"]) == ("F12", False)
            ),
        )
        typed = state["text"]
        assert text.startswith(typed) and 20 < len(typed) < len(text)
        assert desktop.observer.keys_down() == frozenset()


async def test_a_look_in_the_middle_of_a_drag_does_not_hide_the_loss(desktop, clean):
    """A preview reconnects; the drag must not go on without its button."""
    async with proxied(desktop.vnc_port) as (driver, proxy):
        await driver.move(clean.share(100, 300))
        await driver.press("left")
        await clean.saw("the press", lambda state: state["presses"])
        proxy.cut()
        await driver.screenshot()
        await clean.saw("the release", lambda state: state["releases"])
        assert driver.held == ()
        with pytest.raises(ConnectionLostError):
            await driver.move(clean.share(600, 300))
        await driver.move(clean.share(600, 300))


async def test_a_connection_that_is_lost_between_actions_is_made_again(desktop, clean):
    async with proxied(desktop.vnc_port) as (driver, proxy):
        first = await driver.screenshot()
        proxy.cut()
        second = await driver.screenshot()
        assert second.size == first.size and second.number > first.number
        await driver.click(clean.share(200, 400), "left", 1, ())
        await clean.saw("the click", lambda state: len(state["releases"]) == 1)


async def test_a_server_that_stays_away(desktop, clean, monkeypatch):
    monkeypatch.setattr("pagoda_agent.drivers.vnc.driver._TRIES", (0.0, 0.05))
    async with proxied(desktop.vnc_port) as (driver, proxy):
        await driver.move(clean.share(100, 300))
        await driver.press("left")
        proxy.accepts = False
        proxy.cut()
        connections = proxy.connections
        with pytest.raises(ConnectionLostError):
            for _ in range(100):
                await driver.move(clean.share(200, 300))
                await asyncio.sleep(0.02)
        assert proxy.connections == connections + 2
        assert driver.held == ("left",), "not known to be released"
        proxy.accepts = True
        await driver.screenshot()
        assert driver.held == ()
        await clean.saw("the release", lambda state: state["releases"])
