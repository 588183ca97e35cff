"""What the tests of all drivers leave out: other firmware and layouts, before a real desktop."""

import asyncio

import pytest

from pagoda_agent.input.actions import Point
from pagoda_agent.input.layouts import LAYOUTS
from tests.agent.fakes import stations
from tests.agent.opened import opened
from tests.agent.rig.desktop import start_desktop, wait_until
from tests.agent.rig.target import start_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with (
        start_desktop(tmp_path_factory.mktemp("desktop")) as desktop,
        start_target(desktop) as target,
    ):
        yield target


@pytest.mark.parametrize("reach", [stations.pro, stations.old_nanokvm])
async def test_a_task_of_everything(target, reach):
    target.reset()
    with reach(target.desktop) as url:
        async with opened(url) as driver:
            assert (await driver.screenshot()).size == (1280, 720)
            await driver.click(Point(0.1, 0.9), "left", 2, ("ControlLeft",))
            await driver.click(Point(0.3, 0.9), "right", 1, ())
            await driver.drag([target.middle("box"), target.middle("zone")], "left", ())
            await driver.scroll(target.middle("list"), 0, -3, ())
            await driver.scroll(None, 0, 1, ())
            await driver.click(target.middle("text"), "left", 1, ())
            await target.saw("the clicks", lambda state: len(state["releases"]) == 5)
            await driver.type_text("echo  'It works!'\n\t~$_#")
            await driver.chord(["ShiftLeft", "Home"])
            await driver.type_text("End.")
            state = await target.saw("the text", lambda state: "End." in state["text"])
            await driver.screenshot()
    assert state["text"] == "echo  'It works!'\nEnd."
    presses = [(press["button"], press["count"], press["modifiers"]) for press in state["presses"]]
    assert presses[:4] == [
        ("left", 1, ["Control"]), ("left", 2, ["Control"]), ("right", 1, []), ("left", 1, []),
    ]  # fmt: skip
    first = state["presses"][0]
    assert abs(first["x"] - 128) <= 1 and abs(first["y"] - 648) <= 1
    assert state["in_zone"] and max(len(drag["path"]) for drag in state["drags"]) >= 8
    assert [notch["direction"] for notch in state["wheel"]] == ["down"] * 3 + ["up"]
    assert target.desktop.observer.keys_down() == frozenset()
    assert target.desktop.observer.pointer().buttons == frozenset()


async def test_a_pro_clicks_where_it_is_meant_and_lets_go(target):
    """A Pro never releases anything by itself."""
    observer = target.desktop.observer
    target.reset()
    points = [Point(x, y) for x in (0.02, 0.5, 0.98) for y in (0.02, 0.5, 0.98)]
    with stations.pro(target.desktop) as url:
        async with opened(url) as driver:
            for point in points:
                await driver.click(point, "left", 1, ())
            state = await target.saw("nine clicks", lambda state: len(state["releases"]) == 9)
            for press, point in zip(state["presses"], points, strict=True):
                assert abs(press["x"] - int(point.x * 1280)) <= 1
                assert abs(press["y"] - int(point.y * 720)) <= 1
            send = driver._send_move
            moves = []

            async def wait_in_the_middle(to):
                moves.append(to)
                if len(moves) > 5:
                    await asyncio.Event().wait()
                await send(to)

            driver._send_move = wait_in_the_middle
            path = [target.share(100, 300), target.share(600, 300)]
            drag = asyncio.create_task(driver.drag(path, "left", ("ShiftLeft",)))
            await target.saw("the drag", lambda state: len(state["presses"]) == 10)
            drag.cancel()
            with pytest.raises(asyncio.CancelledError):
                await drag
            await driver.release_all()
            await target.saw("the release", lambda state: len(state["releases"]) == 10)
            await asyncio.to_thread(wait_until, "Shift", lambda: not observer.keys_down())
            assert observer.pointer().buttons == frozenset()
            driver._send_move = send
            await driver.press("left")
            await driver.key_down("KeyA")
            await target.saw("the press", lambda state: len(state["presses"]) == 11)
        await target.saw("the last release", lambda state: len(state["releases"]) == 11)
        await asyncio.to_thread(wait_until, "A", lambda: not observer.keys_down())


# A key, and what it types with that layout.
KEYS_THAT_DIFFER = {"de": ("KeyY", "z"), "fr": ("KeyQ", "a")}


async def until_it_types(driver, target, code, char):
    """Ask the program itself whether it knows of the layout, and take back what it typed."""
    typed = ""
    while typed != char:
        await driver.chord([code])
        typed = (await target.saw("a character", lambda state: state["text"]))["text"]
        await driver.chord(["Backspace"])
        await target.saw("no character", lambda state: not state["text"])


@pytest.mark.parametrize("layout", ["de", "fr"])
async def test_a_computer_with_another_layout(target, layout):
    # Tk composes nothing in these desktops, so dead keys are left to the tests of the layouts.
    text = "".join(char for char, strokes in LAYOUTS[layout].items() if len(strokes) == 1)
    text = text.replace("\t", "")
    target.desktop.run("setxkbmap", layout)
    try:
        target.reset()
        with stations.nanokvm(target.desktop) as url:
            async with opened(f"{url}?layout={layout}") as driver:
                await driver.click(target.middle("text"), "left", 1, ())
                await target.saw("the click", lambda state: state["releases"])
                await until_it_types(driver, target, *KEYS_THAT_DIFFER[layout])
                await driver.type_text(text)
                await driver.chord(["F12"])
                state = await target.saw(
                    "the last key", lambda state: state["keys"][-1]["keysym"] == "F12"
                )
    finally:
        target.desktop.run("setxkbmap", "us")
    assert state["text"] == text
