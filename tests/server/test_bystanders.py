"""While somebody attacks, others are served: `/health` answers and streams go on.

The only tests with bounds of time. They have room (a loop that is not held up answers in a
millisecond), what a process that does nothing else loses meanwhile to a busy machine is taken off,
and an attack has to hold others up three times in a row to count: a machine may freeze once.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.attacks import ATTACKS
from tests.server.served import ROOT, Served

# Seconds. Some attacks start eight processes; the server shares two cores with these.
BOUNDS = {"health": 0.5, "stream": 1.0}
_TRIES = 3


class Bystanders:
    """What `bystander.py` tells."""

    def __init__(self, port: int):
        self._told: list[tuple[str, float, float]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.bystander", str(port)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.append(json.loads(line))

    def wait_for(self, since: float) -> None:
        """Until each has been served once more."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "A bystander was turned away."
            if {kind for kind, begin, _ in self._told[-50:] if begin > since} >= BOUNDS.keys():
                return
            time.sleep(0.02)
        raise AssertionError("The bystanders are served no more.")

    def held_up(self, since: float) -> dict[str, float]:
        """Those that waited too long since then, and how long at worst."""
        told = [entry for entry in self._told if entry[1] + entry[2] > since]
        late = [(begin, begin + seconds) for kind, begin, seconds in told if kind == "own"]
        worst = dict.fromkeys(BOUNDS, 0.0)
        for kind, begin, seconds in told:
            if kind in BOUNDS:
                end = begin + seconds
                own = sum(b - a for a, b in late if a < end and b > begin)
                worst[kind] = max(worst[kind], seconds - own)
        return {kind: seconds for kind, seconds in worst.items() if seconds > BOUNDS[kind]}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Bystanders]]:
    with contextlib.ExitStack() as stack:
        cache: Path = tmp_path_factory.mktemp("cache")
        server = Served(
            "crawls", "sees", "--disable-uvicorn-access-log", "--tools", "all", cache=cache
        )
        stack.callback(server.close)
        server.wait_ready()
        bystanders = Bystanders(server.port)
        stack.callback(bystanders.close)
        bystanders.wait_for(0)
        yield server.port, bystanders


@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_served_during(served: tuple[int, Bystanders], name: str) -> None:
    port, bystanders = served
    for _ in range(_TRIES):
        begun = time.monotonic()
        asyncio.run(ATTACKS[name].act(port))
        bystanders.wait_for(time.monotonic())
        held_up = bystanders.held_up(begun)
        if not held_up:
            return
    raise AssertionError(f"{name} held others up, in seconds: {held_up}")
