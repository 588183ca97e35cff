"""When to look: the screen at rest, if it comes to rest."""

import asyncio
import time
from dataclasses import dataclass

from pagoda.agent.drivers.base import Driver
from pagoda.agent.effect import alike
from pagoda.agent.errors import NoSignalError
from pagoda.agent.frame import Frame


@dataclass(frozen=True)
class Settle:
    """Seconds. Two looks in a row that are alike end the wait; for films `most` does."""

    least: float = 0.15
    between: float = 0.12
    most: float = 2.5
    dark: float = 20.0
    """How long a black screen or none is waited out: a computer that starts or wakes up."""


async def settled(driver: Driver, settle: Settle) -> Frame:
    """The screen once it rests after an action, or as it is after `settle.most`.

    Raises NoSignalError when it stays black or without a picture for `settle.dark`.
    """
    dark_until = time.monotonic() + settle.dark
    await asyncio.sleep(settle.least + driver.capabilities.delay)
    deadline = time.monotonic() + settle.most
    last: Frame | None = None
    while True:
        try:
            frame = await driver.screenshot()
            black = frame.is_black()
        except NoSignalError:
            black = True
            if time.monotonic() >= dark_until:
                raise
        now = time.monotonic()
        if black:
            if now >= dark_until:
                raise NoSignalError(
                    f"The screen has been black for {settle.dark:g} s: the computer sleeps, is "
                    "off, or shows nothing."
                )
            last, deadline = None, now + settle.most
        elif (last is not None and alike(last, frame)) or now >= deadline:
            return frame
        else:
            last = frame
        await asyncio.sleep(settle.between)
