"""What is said of an engine, at times that the tests choose."""

import pytest

from pagoda.core.messages import EngineHeartbeat
from pagoda.engine.processes.supervision import Supervision, SupervisionLimits

LIMITS = SupervisionLimits(stall_seconds=100.0, max_restarts=5)


class Watched:
    """An engine that speaks as often as its parent looks: when it should."""

    def __init__(self, limits: SupervisionLimits = LIMITS, *, ready: bool = True):
        self.now = 1000.0
        self.state = Supervision(limits)
        self.state.launched(self.now)
        if ready:
            self.state.serves(self.now)

    def passes(self, seconds: float, heartbeat: EngineHeartbeat | None) -> str:
        """What is said first: "", the words of a stall, or those and "killed"."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.state.look_seconds
            if heartbeat is not None:
                self.state.heard(self.now)
                self.state.beat(heartbeat)
            stall = self.state.look(self.now)
            if stall is not None:
                return stall.words + (", killed" if stall.over else "")
        return ""


def step(serial: int) -> EngineHeartbeat:
    return EngineHeartbeat(serial, "step")


def idle(serial: int = 0) -> EngineHeartbeat:
    return EngineHeartbeat(serial)


def test_an_idle_engine_may_be_idle():
    engine = Watched()
    assert engine.passes(10_000, idle()) == ""


def test_a_step_without_end_is_reported_and_then_over():
    engine = Watched()
    assert engine.passes(20, step(1)) == ""
    assert engine.passes(20, step(2)) == "", "it is another step"
    assert engine.passes(50, step(3)) == ""
    assert engine.passes(10, step(3)) == "The engine made no progress for 50.0 s (phase: step)"
    assert engine.passes(30, step(3)).endswith("for 52.5 s (phase: step)"), "each look tells it"
    while not (said := engine.passes(5, step(3))).endswith("killed"):
        assert engine.now < 1300
    assert said == "The engine made no progress for 1 min 40 s (phase: step), killed"


def test_progress_ends_a_report():
    engine = Watched()
    assert engine.passes(60, step(1))
    assert engine.passes(40, step(2)) == "" and engine.state.stall is None


def test_slow_steps_teach_patience():
    engine = Watched()
    while engine.now < 1090:
        engine.passes(5, step(1))
    assert engine.passes(150, step(2)) == "", "the first took 90 s, so this one may take 360"
    assert engine.passes(50, step(2)).startswith("The engine made no progress")
    assert not engine.state.stall.over


def test_a_machine_that_was_suspended_teaches_nothing():
    engine = Watched()
    engine.passes(5, step(1))
    engine.now += 4000
    engine.state.look(engine.now)
    while not (said := engine.passes(5, step(2))).endswith("killed"):
        assert engine.now < 5200
    assert said.endswith("for 1 min 40 s (phase: step), killed")


def test_silence_is_a_stall_sooner_than_a_step():
    engine = Watched()
    engine.passes(1, idle())
    assert engine.passes(30, None) == "The engine said nothing for 10.0 s"
    while not engine.state.stall.over:
        engine.passes(1, None)
    assert engine.now < 1025


def test_a_start_may_take_its_time_as_long_as_it_speaks():
    engine = Watched(ready=False)
    loading = EngineHeartbeat(3, "load weights")
    assert engine.passes(5000, loading) == ""
    engine.state.serves(engine.now)
    assert engine.passes(40, loading) == "", "what it did before it was ready is over"
    engine = Watched(ready=False)
    assert engine.passes(45, None) == ""
    assert engine.passes(5, None) == "The engine said nothing for 50.0 s"


@pytest.mark.parametrize("heartbeat", [None, step(7)])
def test_who_did_not_look_blames_nobody(heartbeat):
    """The parent was stopped, suspended or busy itself, and the engine perhaps with it."""
    engine = Watched()
    engine.passes(5, step(7))
    engine.now += 10_000
    assert engine.state.look(engine.now) is None
    assert engine.passes(2, heartbeat) == ""


def test_who_always_looks_late_still_sees_a_stall():
    engine = Watched()
    for _ in range(100):
        engine.now += 60
        engine.state.heard(engine.now)
        engine.state.beat(step(1))
        if (stall := engine.state.look(engine.now)) is not None and stall.over:
            return
    raise AssertionError("never seen")


def test_no_time_at_all_is_no_supervision():
    assert Supervision(SupervisionLimits(stall_seconds=0.0)).look_seconds == 0


def test_a_short_time_is_still_some_heartbeats():
    engine = Watched(SupervisionLimits(stall_seconds=0.1))
    assert engine.passes(2, step(1)) == ""
    assert engine.passes(5, step(1)).startswith("The engine made no progress for")


def delays(state: Supervision, times: int) -> list[float | None]:
    return [state.died(0.0) for _ in range(times)]


def test_deaths_in_a_row_wait_longer_and_then_it_is_given_up():
    assert delays(Supervision(LIMITS), 6) == [0, 1, 2, 4, 8, None]
    assert delays(Supervision(SupervisionLimits(max_restarts=0)), 1) == [None]
    endless = delays(Supervision(SupervisionLimits(max_restarts=-1)), 200)
    assert endless[:9] == [0, 1, 2, 4, 8, 16, 32, 60, 60] and set(endless[8:]) == {60}


def test_ten_minutes_of_service_are_a_recovery():
    state = Supervision(LIMITS)
    delays(state, 4)
    state.serves(100.0)
    assert state.died(699.0) == 8.0, "not quite"
    state.serves(1000.0)
    assert state.died(1600.0) == 0.0
    assert state.died(5000.0) == 1.0, "a start that failed is no service, however long it took"
