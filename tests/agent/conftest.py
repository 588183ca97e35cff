"""Fixtures of the agent's tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.registry import make_driver
from tests.agent.rig.stations import STATIONS, Station, start_station
from tests.agent.rig.target import Target


@pytest.fixture(scope="session", params=STATIONS)
def station(request, tmp_path_factory) -> Iterator[Station]:
    """Each way to operate a desktop; started once."""
    with start_station(request.param, tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture
def target(station) -> Target:
    """The program on the station's desktop, which remembers nothing of other tests."""
    station.target.reset()
    return station.target


@pytest.fixture
async def driver(station, target) -> AsyncIterator[Driver]:
    """The station's driver, open."""
    driver = make_driver(station.url)
    await driver.open()
    yield driver
    await driver.close()
