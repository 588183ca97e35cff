"""When to look: once the screen rests, if it comes to rest."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from pagoda_agent.base.errors import DriverError, NoSignalError
from pagoda_agent.drivers.base import Driver
from pagoda_agent.screen.effect import alike
from pagoda_agent.screen.frame import Frame

log = logging.getLogger(__name__)

# Broken pictures and lost connections in a row that end a wait.
_MAX_FAILURES = 4


@dataclass(frozen=True)
class Settle:
    """Seconds, beyond the driver's own delay."""

    least: float = 0.03
    between: float = 0.05
    """Two looks so far apart that are alike end the wait."""
    patience: float = 0.4
    """How long an action's effect is waited for while there is none: menus and dialogs take 100
    to 300 ms to open."""
    most: float = 2.5
    """For films and other screens that never rest."""
    dark: float = 20.0
    """How long a black screen or none is waited out: a computer that starts or wakes up."""


async def settled(
    driver: Driver, settle: Settle, shows_effect: Callable[[Frame], bool] = lambda frame: True
) -> Frame:
    """The screen once it rests and `shows_effect` of what was done, or `patience` is over.

    Raises NoSignalError when it stays black or without a picture for `settle.dark`, DriverError
    when looking fails again and again.
    """
    started = time.monotonic()
    await asyncio.sleep(settle.least + driver.capabilities.delay)
    last: Frame | None = None
    rests_by = started + settle.most
    failures = 0
    while True:
        now = time.monotonic()
        try:
            frame = await driver.screenshot()
            black, failures = driver.capabilities.captures and frame.is_black(), 0
        except NoSignalError:
            black = True
        except DriverError as error:
            failures += 1
            if failures == _MAX_FAILURES:
                raise
            log.warning("The screen could not be seen: %s", error)
            await asyncio.sleep(settle.patience * failures)
            continue
        if black:
            if now - started >= settle.dark:
                raise NoSignalError(
                    f"The screen has shown nothing for {settle.dark:g} s: the computer sleeps, is "
                    "off, or its cable is out."
                )
            last, rests_by = None, now + settle.most
        elif now >= rests_by or (last is not None and alike(last, frame)):
            if now >= started + settle.patience or shows_effect(frame):
                return frame
        else:
            last = frame
        await asyncio.sleep(settle.between)
