"""A line that may not be sent does not stay where the next Enter would send it."""

from pagoda_agent.consent.policy import Category, Policy
from pagoda_agent.drivers.base import Driver
from pagoda_agent.input.actions import Action
from pagoda_agent.input.perform import perform
from pagoda_agent.screen.effect import compare
from pagoda_agent.screen.frame import Frame
from pagoda_agent.screen.observe import Settle, settled

# While a person thinks, so much of the screen may change before keys might reach something else.
_MAY_DIFFER = 0.05
_REMOVED = " What was typed of it was removed again."
_STANDS = " What stands on that line is still there: remove it before you send anything."


async def take_back(
    driver: Driver,
    policy: Policy,
    settle: Settle,
    action: Action,
    category: Category,
    asked: Frame | None = None,
) -> str:
    """Remove what was typed of the line that `action` may not send, by as many Backspaces: other
    keys clear a line in some programs only.

    `category` is the kind that was refused, `asked` the screen when a person was asked. Returns a
    sentence to append to the refusal, empty where there was nothing to remove. Raises DriverError.
    """
    keys = policy.erasure(action, category)
    if keys == ():
        return ""
    before = await driver.screenshot()
    if keys is None or (asked is not None and compare(asked, before).share > _MAY_DIFFER):
        return _STANDS
    for key in keys:
        with policy.noting(key):
            await perform(driver, key, str)
    after = await settled(driver, settle, lambda now: compare(before, now).happened)
    if not compare(before, after).happened:
        policy.left()
        return _STANDS
    return _REMOVED
