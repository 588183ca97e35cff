"""A driver that is open for the length of a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.registry import make_driver


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Driver]:
    driver = make_driver(url)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()
