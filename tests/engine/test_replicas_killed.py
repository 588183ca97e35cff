"""Three engines in processes of their own, of which one is killed again and again while many
clients ask, and some leave: streams go on elsewhere, and nothing stays behind."""

import asyncio
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.replicas.group import Replicas
from pagoda.engine.replicas.replica import Replica
from tests.engine.mock_runner import VOCAB, request
from tests.engine.stub_engine import COUNTS

ROOT = Path(__file__).parents[2]
ENGINES, CLIENTS, TOKENS, KILLS = 3, 20, 40, 8
PATIENCE = 120


def zombies() -> list[int]:
    """Children of this process that ended and that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(path.parent.name))
    return found


async def soon(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def storm(folder: Path) -> None:
    dice = random.Random(4)
    options = LaunchOptions(
        "critical", module="tests.engine.stub_engine", supervision=SupervisionLimits(0, -1)
    )
    engines = [Replica(EngineConfig(), options) for _ in range(ENGINES)]
    client = Replicas(EngineConfig(), engines)
    await client.wait_ready(PATIENCE, lambda step: None)
    over, whole, left, moved = asyncio.Event(), 0, 0, 0

    async def ask(index: int) -> None:
        nonlocal whole, left
        turn = 0
        while not over.is_set():
            turn += 1
            wanted = request(f"{index}-{turn}", [COUNTS, index], max_tokens=TOKENS, ignore_eos=True)
            most = dice.choice((5, TOKENS, TOKENS))
            tokens: list[int] = []
            stream = client.generate(wanted)
            try:
                async for delta in stream:
                    tokens += delta.token_ids
                    if len(tokens) >= most:
                        break
            except EngineDeadError as error:
                # None serves; or it was running at two deaths, and may be their cause.
                assert "starting" in str(error) or "was ended by SIGKILL" in str(error)
                most = 0
                await asyncio.sleep(0.1)
            finally:
                await stream.aclose()
            assert tokens == [(index + 1 + i) % VOCAB for i in range(len(tokens))]
            assert len(tokens) >= most
            whole += most == TOKENS
            left += 0 < most < TOKENS

    async def kill() -> None:
        nonlocal moved
        for _ in range(KILLS):
            await soon(lambda: any(each.num_running for each in engines if each.state == "ready"))
            victim = max(
                (each for each in engines if each.state == "ready"), key=lambda x: x.num_running
            )
            moved += victim.num_running
            os.kill(victim.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
        over.set()

    await asyncio.gather(kill(), *(ask(index) for index in range(CLIENTS)))
    assert moved and whole and left
    assert client.num_running == 0 and client._dispatch._prompt_tokens == [0] * ENGINES
    await soon(lambda: all(each.state == "ready" for each in engines))
    assert sum(each.restarts for each in engines) == KILLS
    for each in engines:
        await soon(
            lambda stats=each: (
                (stats.stats.num_running, stats.stats.num_waiting) == (0, 0)
                and stats.stats.blocks_free == stats.stats.blocks_total
            )
        )
    assert sorted(folder.iterdir()) == sorted(each._child.folder for each in engines)
    await client.shutdown()
    assert list(folder.iterdir()) == []
    await soon(lambda: not zombies())


@pytest.mark.slow
def test_engines_that_are_killed_again_and_again(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("STUB_STEP_SECONDS", "0.01")
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        asyncio.run(storm(Path(folder)))
