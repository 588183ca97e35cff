"""Engines that count, in virtual time, killed while they work: each stream has all of its tokens,
once and in order."""

import asyncio
import random

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import Shutdown, StepOutputs
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.replicas.group import Replicas
from pagoda.engine.replicas.replica import Replica
from tests.engine.fake_child import READY, FakeChild
from tests.engine.mock_runner import VOCAB, CountingRunner, make_scheduler, request, tokens_of
from tests.virtual_time import in_virtual_time

STEP_SECONDS, START_SECONDS = 0.01, 0.5
ENGINES, REQUESTS, KILLS = 3, 60, 5


class CountingChild(FakeChild):
    """A process with an engine inside."""

    def __init__(self, folder):
        super().__init__(folder)
        self._core = EngineCore(make_scheduler(), LocalExecutor(CountingRunner()))
        self._is_due = False

    def watch(self, *args):
        super().watch(*args)
        self._loop.call_later(START_SECONDS, self.say, READY)

    def send(self, message):
        super().send(message)
        if isinstance(message, Shutdown):
            self.exit(0)
            return
        self._core.handle(message)
        self._step_later()

    def _step_later(self):
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(STEP_SECONDS, self._step)

    def _step(self):
        self._is_due = False
        if self.returncode is None:
            self.say(StepOutputs(self._core.step(), self._core.stats()))
            if self._core.has_work():
                self._step_later()


@pytest.mark.parametrize("seed", range(5))
@in_virtual_time
async def test_no_stream_is_lost(tmp_path, seed):
    dice, children = random.Random(seed), []

    def spawn(config, options):
        children.append(CountingChild(tmp_path / str(len(children))))
        return children[-1]

    options = LaunchOptions(supervision=SupervisionLimits(0, -1))
    engines = [Replica(EngineConfig(), options, spawn) for _ in range(ENGINES)]
    client = Replicas(EngineConfig(), engines)
    await client.wait_ready(10, lambda step: None)
    moved = 0

    async def ask(index):
        # A few beginnings that many share, and an end of one's own.
        prompt = [dice.randrange(3)] * dice.choice((1, 8, 20)) + [index % VOCAB]
        wanted = request(str(index), prompt, max_tokens=dice.randint(1, 30), ignore_eos=True)
        await asyncio.sleep(dice.uniform(0, KILLS))
        while True:
            try:
                deltas = [delta async for delta in client.generate(wanted)]
            except EngineDeadError as error:
                assert "starting" in str(error), "only before it was taken"
                await asyncio.sleep(0.1)
                continue
            length = wanted.sampling.max_tokens
            assert tokens_of(deltas) == [(index + 1 + i) % VOCAB for i in range(length)]
            return

    async def kill():
        nonlocal moved
        for _ in range(KILLS):
            await asyncio.sleep(1)
            ready = [each for each in engines if each.state == "ready"]
            if ready:
                victim = max(ready, key=lambda each: each.num_running)
                moved += victim.num_running
                victim._child.kill()

    await asyncio.gather(kill(), *(ask(index) for index in range(REQUESTS)))
    assert moved, "somebody was inside when an engine died"
    assert sum(each.restarts for each in engines) >= 3
    assert client.num_running == 0
    assert client._dispatch._prompt_tokens == [0] * ENGINES
    await client.shutdown()
