"""What an engine's heartbeats say of its loop."""

import threading
from concurrent.futures import Future

from pagoda.core.messages import AddRequest, EngineHeartbeat, Utility
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.processes.activity import STEP, Activity
from pagoda.engine.processes.main import EngineLoop
from pagoda.engine.processes.watchdog import Watchdog
from tests.engine.mock_runner import CountingRunner, make_scheduler


class FakeEnd:
    """The wire: what comes is in `messages`."""

    def __init__(self, *messages):
        self.messages = list(messages)

    def receive(self):
        return self.messages.pop(0) if self.messages else None

    def send(self, message): ...


class Grammars:
    def compile(self, grammar):
        return Future()


class Spy(Activity):
    def __init__(self):
        super().__init__()
        self.phases = []

    def beat(self, phase):
        super().beat(phase)
        self.phases.append(phase)


def loop_of(*messages):
    core = EngineCore(make_scheduler(), LocalExecutor(CountingRunner()), grammars=Grammars())
    spy = Spy()
    return core, EngineLoop(core, FakeEnd(*messages), spy), spy


def turns(loop, count=3):
    for _ in range(count):
        loop.patience_ms()
        loop.turn()


def add(**fields):
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    return AddRequest(req_id="r", prompt_token_ids=[1], sampling=sampling, **fields)


def test_steps_calls_and_idleness_are_told_apart():
    _, loop, spy = loop_of()
    turns(loop, 1)
    assert spy.phases == ["work ahead", None]
    _, loop, spy = loop_of(add())
    turns(loop, 2)
    assert spy.phases == ["work ahead", None, STEP, STEP]
    _, loop, spy = loop_of(Utility(1, "stats"))
    turns(loop, 2)
    assert spy.phases == ["work ahead", None, "stats", "work ahead", None]


def test_requests_that_nothing_can_be_done_for_are_no_progress():
    core, loop, spy = loop_of(add())
    core.scheduler.schedule = lambda: None
    turns(loop, 1)
    before = spy.heartbeat()
    turns(loop, 9)
    assert spy.heartbeat() == before and before.phase == STEP


def test_the_first_step_after_such_requests_left_is_one():
    """It may be the one that never ends, and an idle engine is not watched for that."""
    core, loop, spy = loop_of(add())
    core.stalled = True
    turns(loop, 1)
    assert spy.phases == ["work ahead", None, STEP]


def test_one_that_waits_for_its_grammar_is():
    _, loop, spy = loop_of(add(grammar="slow"))
    turns(loop, 1)
    before = spy.heartbeat()
    turns(loop, 9)
    assert spy.heartbeat().serial > before.serial


def test_the_watchdog_tells_what_goes_on():
    told: list[EngineHeartbeat] = []
    busy, idle = threading.Event(), threading.Event()

    def tell(heartbeat: EngineHeartbeat) -> None:
        told.append(heartbeat)
        (idle if heartbeat.phase is None else busy).set()

    dog = Watchdog(stall_seconds=0.04, tell=tell)
    dog.beat(STEP)
    assert busy.wait(10) and told[-1].phase == STEP
    dog.beat(None)
    assert idle.wait(10)
    dog.close()
