"""What every driver must do on a real desktop, as the programs there see it."""

import asyncio
import string

import pytest

from pagoda_agent.base.errors import UnsupportedActionError, UntypeableError
from pagoda_agent.input.actions import Point
from pagoda_agent.input.keys import KEYS

ROW = (0.02, 0.5, 0.98)


async def everything_arrived(driver, target):
    """The state once it has all that the driver sent before: things arrive in order, and these
    keys are the last."""

    def ends(state):
        return sum(key["keysym"] == "F12" and not key["pressed"] for key in state["keys"])

    before = ends(target.state())
    await driver.chord(["F12"])
    return await target.saw("F12", lambda state: ends(state) > before)


async def seen(driver, holds):
    """The first screenshot that holds: what a server shows may lag behind what it was told."""
    async with asyncio.timeout(60):
        while not holds(frame := await driver.screenshot()):
            await asyncio.sleep(0.02)
    return frame


def close_to(at, point, size=(1280, 720)):
    """Whether a place that the target saw is the pixel of the point, or one beside it."""
    return all(
        abs(seen - int(share * edge)) <= 1
        for seen, share, edge in zip(at, point, size, strict=True)
    )


def like(pixel, colour):
    """Whether it is the colour, as far as a JPEG keeps it."""
    return all(abs(got - wanted) <= 8 for got, wanted in zip(pixel, colour, strict=True))


async def test_a_screenshot_shows_the_screen_as_it_is(driver, target):
    x, y, width, height = target.place("box")
    inside, beside = (x + width // 2, y + height // 2), (x + width + 20, y)

    def shows_the_box(image):
        return like(image.getpixel(inside), (0xFF, 0xB0, 0x00)) and like(
            image.getpixel(beside), (0x20, 0x40, 0x60)
        )

    frame = await seen(driver, lambda frame: shows_the_box(frame.image))
    assert frame.size == (1280, 720) and not frame.is_black()
    again = await seen(driver, lambda now: now.image.tobytes() == frame.image.tobytes())
    assert again.number > frame.number


async def test_a_screenshot_shows_what_a_click_changed(driver, target):
    at = target.share(300, 500)
    pad = (0x20, 0x40, 0x60)
    frame = await seen(driver, lambda frame: like(frame.image.getpixel((300, 500)), pad))
    before = frame.image.getpixel((300, 500))
    await driver.click(at, "left", 1, ())
    await target.saw("the click", lambda state: state["presses"])
    await seen(driver, lambda frame: not like(frame.image.getpixel((300, 500)), before))


async def test_clicks_arrive_where_they_are_meant(driver, target):
    points = [Point(x, y) for x in ROW for y in ROW]
    for point in points:
        await driver.click(point, "left", 1, ())
    state = await target.saw("nine clicks", lambda state: len(state["releases"]) == 9)
    for press, release, point in zip(state["presses"], state["releases"], points, strict=True):
        assert press["button"] == "left"
        assert close_to((press["x"], press["y"]), point)
        assert close_to((release["x"], release["y"]), point)


async def test_the_corners_are_on_the_screen(driver, target, station):
    for corner in (Point(0, 0), Point(1, 0), Point(1, 1), Point(0, 1)):
        await driver.move(corner)
        await everything_arrived(driver, target)
        at = station.desktop.observer.pointer()
        assert close_to((at.x, at.y), (min(corner.x, 0.9999), min(corner.y, 0.9999)))


@pytest.mark.parametrize("button, count", [("left", 2), ("left", 3), ("right", 1), ("middle", 1)])
async def test_buttons_and_counts(driver, target, button, count):
    wanted = [(button, number) for number in range(1, count + 1)]
    # On a busy machine two clicks may be too far apart to be a double one.
    for attempt in range(5):
        target.reset()
        await driver.click(target.share(200 + 60 * attempt, 400), button, count, ())
        state = await everything_arrived(driver, target)
        assert len(state["presses"]) == len(state["releases"]) == count
        if (got := [(press["button"], press["count"]) for press in state["presses"]]) == wanted:
            return
    raise AssertionError(f"not {wanted}, but {got}")


@pytest.mark.parametrize("button", ["back", "forward"])
async def test_buttons_that_not_all_have(driver, target, station, button):
    at = target.share(200, 400)
    if station.url.startswith("vnc:"):
        with pytest.raises(UnsupportedActionError, match=button):
            await driver.click(at, button, 1, ())
        await driver.release_all()
        assert driver.held == ()
        assert not (await everything_arrived(driver, target))["presses"]
    else:
        await driver.click(at, button, 1, ())
        state = await everything_arrived(driver, target)
        assert [press["button"] for press in state["presses"]] == [button]


async def test_a_drag_moves_in_steps_and_ends_where_it_shall(driver, target):
    await driver.drag([target.middle("box"), target.middle("zone")], "left", ())
    state = await target.saw("a drag", lambda state: state["drags"])
    (drag,) = state["drags"]
    assert len(drag["path"]) >= 8
    assert close_to(drag["path"][0], target.middle("box")) or drag["path"][0] == [40, 80]
    assert close_to(drag["path"][-1], target.middle("zone"))
    assert state["in_zone"]


async def test_a_drag_through_points_and_from_where_the_pointer_is(driver, target):
    corners = [target.share(*at) for at in ((100, 300), (300, 300), (300, 500))]
    await driver.move(corners[0])
    await driver.drag(corners[1:], "right", ("ShiftLeft",))
    await driver.drag([corners[0]], "left", ())
    state = await target.saw("two drags", lambda state: len(state["drags"]) == 2)
    first, second = state["drags"]
    assert (first["button"], first["modifiers"]) == ("right", ["Shift"])
    assert close_to(first["path"][0], corners[1])
    assert close_to(second["path"][0], corners[2])
    assert close_to(second["path"][-1], corners[0])


async def test_the_wheel_scrolls_both_ways(driver, target):
    await driver.scroll(target.middle("list"), 0, -5, ())
    state = await everything_arrived(driver, target)
    assert [notch["direction"] for notch in state["wheel"]] == ["down"] * 5
    scrolled = state["list"]["first"]
    assert scrolled > 0
    await driver.scroll(None, 0, 2, ("ControlLeft",))
    state = await everything_arrived(driver, target)
    assert [(n["direction"], n["modifiers"]) for n in state["wheel"][5:]] == [
        ("up", ["Control"])
    ] * 2


async def test_the_horizontal_wheel_or_an_error(driver, target, station):
    if station.name == "x11vnc":
        pytest.skip("x11vnc 0.9.16 knows five buttons, and drops these notches")
    at = target.share(300, 300)
    if not driver.capabilities.horizontal_wheel:
        with pytest.raises(UnsupportedActionError, match="horizontal"):
            await driver.scroll(at, 1, 0, ())
        return
    await driver.scroll(at, 2, 0, ())
    await driver.scroll(at, -1, 0, ())
    state = await everything_arrived(driver, target)
    # As Tk 8.6 tells it; no Shift key was pressed.
    assert [(n["direction"], n["modifiers"]) for n in state["wheel"]] == [
        ("down", ["Shift"]), ("down", ["Shift"]), ("up", ["Shift"]),
    ]  # fmt: skip
    assert not any("Shift" in key["keysym"] for key in state["keys"])


async def click_into_text(driver, target):
    """A window manager may hold a click back, but not the keys that come after it."""
    await driver.click(target.middle("text"), "left", 1, ())
    await target.saw("the click", lambda state: state["releases"])


async def type_into_text(driver, target, text):
    await click_into_text(driver, target)
    await driver.type_text(text)
    return (await everything_arrived(driver, target))["text"]


async def test_all_of_ascii_is_typed_as_it_is(driver, target):
    printable = string.digits + string.ascii_letters + string.punctuation
    text = f"{printable}\n\ttab   three  blanks\n\n~ _ # end "
    assert await type_into_text(driver, target, text) == text


async def test_other_signs_are_typed_or_named(driver, target):
    text = "é中€ ñß 東京 Ω≠ — ok"
    if driver.capabilities.unicode:
        assert await type_into_text(driver, target, text) == text
        return
    with pytest.raises(UntypeableError) as caught:
        await type_into_text(driver, target, text)
    assert "中" in caught.value.characters
    assert (await everything_arrived(driver, target))["text"] == ""


async def test_what_no_keyboard_types_is_named_and_nothing_is_typed(driver, target):
    with pytest.raises(UntypeableError, match="U\\+0007"):
        await type_into_text(driver, target, "begin\x07end")
    assert (await everything_arrived(driver, target))["text"] == ""


async def test_every_key_is_the_one_it_is_called(driver, target, station):
    observer = station.desktop.observer
    # Locks change what others mean, and the numeric block depends on one of them.
    skip = ("Lock", "Numpad", "AltRight")
    keys = [key for key in KEYS.values() if not any(word in key.code for word in skip)]
    # Servers for VNC have few keys to spare for those that are not on the display's keyboard.
    there = [key for key in keys if observer.keycode_of(key.keysym)]
    assert len(there) > 70
    for key in there:
        await driver.chord([key.code])
    state = await everything_arrived(driver, target)
    pressed = [key["keysym"] for key in state["keys"] if key["pressed"]][: len(there)]
    assert pressed == [observer.keysym_name(key.keysym) for key in there]
    assert not observer.keys_down()


async def test_a_chord_holds_its_modifiers(driver, target):
    chord = asyncio.create_task(driver.chord(["ControlLeft", "ShiftLeft", "KeyT"], hold=3600))
    state = await target.saw("the press", lambda state: len(state["keys"]) >= 3)
    assert not chord.done() and all(key["pressed"] for key in state["keys"])
    chord.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chord
    await driver.release_all()
    state = await everything_arrived(driver, target)
    events = state["keys"][:6]
    assert [(key["keysym"].removesuffix("_L").lower(), key["pressed"]) for key in events] == [
        ("control", True), ("shift", True), ("t", True),
        ("t", False), ("shift", False), ("control", False),
    ]  # fmt: skip
    assert events[2]["keysym"] == "T"
    assert events[2]["modifiers"] == ["Shift", "Control"]


async def test_a_chord_ends_by_itself(driver, target):
    await driver.chord(["ControlLeft", "KeyT"], hold=0.05)
    assert driver.held == ()
    state = await everything_arrived(driver, target)
    assert [key["pressed"] for key in state["keys"][:4]] == [True, True, False, False]


async def test_shift_makes_signs_of_digits(driver, target):
    await driver.chord(["ShiftLeft", "Digit7"])
    state = await everything_arrived(driver, target)
    assert "ampersand" in [key["keysym"] for key in state["keys"]]


async def test_a_click_with_modifiers(driver, target):
    await driver.click(target.share(300, 300), "left", 1, ("ControlLeft", "ShiftLeft"))
    state = await everything_arrived(driver, target)
    assert [press["modifiers"] for press in state["presses"]] == [["Shift", "Control"]]


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
async def test_a_drag_that_ends_early_leaves_nothing_down(driver, target, station, ending):
    observer = station.desktop.observer
    path = [target.share(100, 300), target.share(600, 300)]
    send, moves = driver._send_move, []

    async def stop_in_the_middle(to):
        moves.append(to)
        if len(moves) > 5:
            if ending == "failed":
                raise RuntimeError("as a bug would")
            await asyncio.Event().wait()
        await send(to)

    driver._send_move = stop_in_the_middle
    drag = asyncio.create_task(driver.drag(path, "left", ("ShiftLeft",)))
    await target.saw("the press", lambda state: state["presses"])
    if ending == "cancelled":
        drag.cancel()
    with pytest.raises((asyncio.CancelledError, RuntimeError)):
        await drag
    await driver.release_all()
    assert driver.held == ()
    await everything_arrived(driver, target)
    assert observer.pointer().buttons == frozenset()
    assert observer.keys_down() == frozenset()


async def test_closing_releases_what_is_down(driver, target, station):
    await driver.move(target.share(300, 300))
    await driver.key_down("ControlLeft")
    await driver.press("left")
    await target.saw("the press", lambda state: state["presses"])
    assert driver.held == ("ControlLeft", "left")
    await driver.close()
    await driver.close()
    state = await target.saw("the release", lambda state: state["releases"])
    await target.saw("the key", lambda state: state["keys"] and not state["keys"][-1]["pressed"])
    assert state["releases"][0]["button"] == "left"
    assert station.desktop.observer.keys_down() == frozenset()


async def test_typing_that_is_cancelled_stops_with_all_keys_up(driver, target, station):
    await click_into_text(driver, target)
    typing = asyncio.create_task(driver.type_text("Stop Me! " * 500))
    await target.saw("some text", lambda state: len(state["text"]) > 20)
    typing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await typing
    await driver.release_all()
    state = await everything_arrived(driver, target)
    assert 20 < len(state["text"]) < 4500
    assert station.desktop.observer.keys_down() == frozenset()
