"""One checked action, carried out on a driver."""

from collections.abc import Callable

from pagoda_agent.drivers.base import Driver
from pagoda_agent.input.actions import (
    Click,
    Drag,
    HidReset,
    InputAction,
    Key,
    Move,
    Power,
    Press,
    Release,
    Scroll,
    Type,
)


async def perform(driver: Driver, action: InputAction, reveal: Callable[[str], str]) -> None:
    """Do it. `reveal` puts secrets into text that is typed, and nowhere else.

    Raises ActionError where the driver has no means for it (nothing was sent), DriverError where
    it failed midway. Whoever cancels this calls `driver.release_all`.
    """
    match action:
        case Move(to):
            await driver.move(to)
        case Click(at, button, count, modifiers):
            await driver.click(at, button, count, modifiers)
        case Drag(path, button, modifiers):
            await driver.drag(path, button, modifiers)
        case Press(at, button):
            if at is not None:
                await driver.move(at)
            await driver.press(button)
        case Release(at, button):
            if at is not None:
                await driver.move(at)
            await driver.release(button)
        case Scroll(at, dx, dy, modifiers):
            await driver.scroll(at, dx, dy, modifiers)
        case Type(text):
            await driver.type_text(reveal(text))
        case Key(codes, repeat, hold):
            for _ in range(repeat):
                await driver.chord(codes, hold)
        case Power():
            await driver.power(action)
        case HidReset():
            await driver.hid_reset()
