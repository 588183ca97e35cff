"""The X11 driver's own: displays that are missing, closed or hung, keys lent to signs, takeover."""

import asyncio
import os
import secrets
import signal
import subprocess
import threading

import pytest

from pagoda_agent.base.errors import ConfigError, ConnectionLostError, DriverError
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.drivers.x11 import driver as x11
from pagoda_agent.drivers.x11.keyboard import Keyboard
from pagoda_agent.input.actions import Point
from tests.agent.rig.desktop import Desktop, require, start_desktop, start_server, wait_until
from tests.agent.rig.observer import Observer
from tests.agent.rig.programs import xterm, zenity
from tests.agent.rig.target import start_target

CHINESE = 0x01000000 | ord("中")


@pytest.fixture
def server(tmp_path):
    """A bare X server of a test's own, which it may kill: (desktop, process)."""
    require("Xvfb")
    desktop = Desktop(tmp_path, (320, 200))
    try:
        yield desktop, start_server(desktop, "Xvfb", "-screen", "0", "320x200x24")
    finally:
        desktop.close()


@pytest.fixture(scope="module")
def desktop(tmp_path_factory):
    with start_desktop(tmp_path_factory.mktemp("x11")) as desktop:
        yield desktop


@pytest.mark.parametrize("url", ["x11:", "x11://"])
async def test_no_display_says_what_to_do(monkeypatch, url):
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(DriverError, match=r"DISPLAY is not set.*x11://:0"):
        await make_driver(url).open()


async def test_the_display_of_the_environment(monkeypatch, desktop):
    monkeypatch.setenv("DISPLAY", desktop.display)
    driver = make_driver("x11:")
    await driver.open()
    assert await driver.screen_size() == desktop.size
    await driver.close()


# python-xlib leaves the socket of a connection that was refused to the garbage collector.
leaves_a_socket = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")


@leaves_a_socket
@pytest.mark.parametrize(
    "display, message", [(":4021", "cannot be opened"), ("nonsense", "not an X display")]
)
async def test_a_display_that_is_not_there(display, message):
    with pytest.raises(DriverError, match=message):
        await make_driver(f"x11://{display}").open()


@pytest.mark.parametrize("url", ["x11:/:1", "x11://:1?a=b", "x11://me@:1"])
def test_an_url_that_is_none(url):
    with pytest.raises(ConfigError, match="x11://:1"):
        make_driver(url)


async def test_the_key_to_a_display_is_honoured(tmp_path, monkeypatch):
    require("Xvfb", "xauth")
    cookie = secrets.token_hex(16)
    locks, keys = tmp_path / "locks", tmp_path / "keys"
    subprocess.run(["xauth", "-f", locks, "add", ":0", ".", cookie], check=True)
    desktop = Desktop(tmp_path, (320, 200))
    try:
        start_server(desktop, "Xvfb", "-screen", "0", "320x200x24", "-auth", str(locks))
        subprocess.run(["xauth", "-f", keys, "add", desktop.display, ".", cookie], check=True)
        driver = make_driver(f"x11://{desktop.display}")
        monkeypatch.setenv("XAUTHORITY", str(tmp_path / "none"))
        with pytest.raises(DriverError, match="XAUTHORITY"):
            await driver.open()
        monkeypatch.setenv("XAUTHORITY", str(keys))
        await driver.open()
        assert (await driver.screenshot()).size == (320, 200)
        await driver.close()
    finally:
        desktop.close()


@pytest.mark.parametrize("depth, seen", [("24", True), ("16", False)])
async def test_depths(tmp_path, depth, seen):
    require("Xvfb")
    desktop = Desktop(tmp_path, (50, 30))
    try:
        start_server(desktop, "Xvfb", "-screen", "0", f"50x30x{depth}")
        driver = make_driver(f"x11://{desktop.display}")
        if seen:
            await driver.open()
            assert (await driver.screenshot()).is_black()
            await driver.close()
        else:
            with pytest.raises(DriverError, match="16 bits"):
                await driver.open()
    finally:
        desktop.close()


@leaves_a_socket
async def test_a_server_that_is_killed(server):
    desktop, process = server
    driver = make_driver(f"x11://{desktop.display}")
    await driver.open()
    await driver.move(Point(0.5, 0.5))
    await driver.press("left")
    process.kill()
    process.wait()
    with pytest.raises(ConnectionLostError):
        await driver.move(Point(0.1, 0.1))
    with pytest.raises(ConnectionLostError):
        await driver.type_text("more")
    with pytest.raises(DriverError, match="cannot be opened"):
        await driver.screenshot()
    await driver.close()


async def test_a_server_that_hangs(server, monkeypatch):
    desktop, process = server
    monkeypatch.setattr(x11, "_ANSWER_SECONDS", 0.5)
    driver = make_driver(f"x11://{desktop.display}")
    await driver.open()
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionLostError, match="does not answer"):
            await driver.screenshot()
        with pytest.raises(DriverError, match="does not answer"):
            await driver.open()
    finally:
        process.send_signal(signal.SIGCONT)
    await driver.close()
    wait_until("the threads", lambda: "x11" not in {t.name for t in threading.enumerate()})


async def test_keys_that_were_lent_are_given_back(desktop):
    driver = make_driver(f"x11://{desktop.display}")
    await driver.open()
    await driver.type_text("中文")
    lent = Observer(desktop.display)
    assert lent.keycode_of(CHINESE)
    await driver.close()
    after = Observer(desktop.display)
    assert not after.keycode_of(CHINESE)
    lent.close()
    after.close()


async def test_more_signs_than_spare_keys(desktop, monkeypatch):
    """The keys that are lent change hands, and a program still reads each sign as it was meant."""
    read = Keyboard._read

    def read_few(keyboard):
        read(keyboard)
        keyboard._spare = sorted(keyboard._spare)[:4]

    monkeypatch.setattr(Keyboard, "_read", read_few)
    text = "東京中文 and 日本語 – 東京"
    with start_target(desktop) as target:
        driver = make_driver(f"x11://{desktop.display}")
        await driver.open()
        await driver.click(target.middle("text"), "left", 1, ())
        await target.saw("the click", lambda state: state["releases"])
        await driver.type_text(text)
        await target.saw("all of the text", lambda state: len(state["text"]) >= len(text))
        assert target.state()["text"] == text
        await driver.close()


async def test_caps_lock_does_not_change_what_is_typed(desktop):
    with start_target(desktop) as target:
        driver = make_driver(f"x11://{desktop.display}")
        await driver.open()
        await driver.click(target.middle("text"), "left", 1, ())
        await target.saw("the click", lambda state: state["releases"])
        await driver.chord(["CapsLock"])
        await driver.type_text("Aa1!zZ")
        await driver.chord(["CapsLock"])
        await driver.type_text(" Bb")
        await target.saw("the text", lambda state: state["text"] == "Aa1!zZ Bb")
        await driver.close()


async def test_somebody_else_moves_the_mouse(desktop):
    driver = make_driver(f"x11://{desktop.display}")
    await driver.open()
    assert not await driver.taken_over()
    await driver.move(Point(0.5, 0.5))
    assert not await driver.taken_over()
    desktop.run("xdotool", "mousemove", "--sync", "100", "200")
    assert await driver.taken_over()
    assert not await driver.taken_over(), "it is told once"
    at = await driver.pointer()
    assert (int(at.x * 1280), int(at.y * 720)) == (100, 200)
    await driver.drag([Point(0.25, 0.5)], "middle", ())
    assert not await driver.taken_over()
    await driver.close()


async def test_a_display_that_changes_its_size(tmp_path):
    require("xrandr")
    with start_desktop(tmp_path, "tigervnc") as desktop:
        driver = make_driver(f"x11://{desktop.display}")
        await driver.open()
        first = await driver.screenshot()
        desktop.run("xrandr", "--size", "1024x768")
        assert await driver.screen_size() == (1024, 768) != first.size
        assert (await driver.screenshot()).size == (1024, 768)
        await driver.move(Point(0.75, 0.75))
        assert desktop.observer.pointer()[:2] == (768, 576)
        await driver.close()


async def test_open_files_do_not_add_up(desktop):
    async def round_trip():
        driver = make_driver(f"x11://{desktop.display}")
        await driver.open()
        await driver.screenshot()
        await driver.close()

    await round_trip()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await round_trip()
    wait_until("files", lambda: len(os.listdir("/proc/self/fd")) <= before)
    await asyncio.sleep(0)


async def test_what_has_the_focus_names_itself(desktop):
    driver = make_driver(f"x11://{desktop.display}")
    await driver.open()
    try:
        assert await driver.focused_program() is None, "no window"
        with xterm(desktop):
            assert await driver.focused_program() == "xterm"
            with zenity(desktop, "--entry"):
                assert await driver.focused_program() == "zenity"
    finally:
        await driver.close()
