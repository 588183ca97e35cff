"""What the tests of all drivers leave out: other firmware and layouts, before a real desktop."""

import pytest

from pagoda.agent.actions import Point
from pagoda.agent.layouts import LAYOUTS
from tests.agent.fakes import stations
from tests.agent.opened import opened
from tests.agent.rig.desktop import start_desktop
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


@pytest.mark.parametrize("layout", ["de", "fr"])
async def test_a_computer_with_another_layout(target, layout):
    # Tk composes nothing in these desktops, so dead keys are left to the tests of the layouts.
    text = "".join(char for char, strokes in LAYOUTS[layout].items() if len(strokes) == 1)
    target.desktop.run("setxkbmap", layout)
    try:
        target.reset()
        with stations.nanokvm(target.desktop) as url:
            async with opened(f"{url}?layout={layout}") as driver:
                await driver.click(target.middle("text"), "left", 1, ())
                await target.saw("the click", lambda state: state["releases"])
                await driver.type_text(text.replace("\t", ""))
                state = await target.saw(
                    "the text", lambda state: len(state["text"]) >= len(text) - 1
                )
    finally:
        target.desktop.run("setxkbmap", "us")
    assert state["text"] == text.replace("\t", "")
