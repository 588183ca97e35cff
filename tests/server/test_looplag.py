"""The gauge of the loop's lag: the worst of late, fed by a real server."""

import re
import signal
import time
from collections.abc import Callable

import httpx
import pytest

from pagoda.server.http.looplag import LoopLag
from tests.server.conftest import wait_until
from tests.server.served import Served


def test_the_worst_of_the_last_minute() -> None:
    lag = LoopLag(0.1)
    for now in (600.0, 600.1, 601.7, 601.8):
        lag.tick(now)
    assert lag.seconds(602) == pytest.approx(1.5)
    assert lag.seconds(659) == pytest.approx(1.5)  # a scrape takes nothing away
    assert lag.seconds(661) == 0
    assert LoopLag(0.1).seconds() == 0


def test_a_stall_across_a_period_belongs_to_its_end() -> None:
    lag = LoopLag(0.1)
    lag.tick(629)
    lag.tick(631.1)
    assert lag.seconds(689) == pytest.approx(2.0)
    assert lag.seconds(690) == 0


def test_a_server_tells_its_lag(launch: Callable[..., Served]) -> None:
    served = launch()
    served.wait_ready()

    def lag() -> float:
        text = httpx.get(f"{served.url}/metrics").text
        found = re.search(r"^pagoda:event_loop_lag_seconds (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    served.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    served.process.send_signal(signal.SIGCONT)
    wait_until(lambda: lag() > 0.3)
