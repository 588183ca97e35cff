import threading

from pagoda.engine.processes.watchdog import Watchdog, situation


def test_the_situation_names_phase_memory_and_stacks():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="stuck-in-wait")
    thread.start()
    try:
        lines = situation("load weights", 31.0)
    finally:
        release.set()
        thread.join()
    assert "31.0 s in phase: load weights" in lines[0]
    for word in ("resident", "free memory", "/dev/shm"):
        assert word in lines[0]
    text = "\n".join(lines)
    assert "thread stuck-in-wait:" in text and "threading.py" in text


def test_silence_is_reported_and_idleness_is_not(caplog):
    caplog.set_level("WARNING", logger="pagoda")
    reported = threading.Event()

    class Spy(Watchdog):
        def _report(self, phase, silent, *, stacks=True):
            super()._report(phase, silent, stacks=stacks)
            told.append(caplog.text)
            reported.set()

    told = []
    dog = Spy(stall_seconds=0.05)
    dog.beat(None)
    assert not reported.wait(0.3)
    dog.beat("step")
    for _ in range(2):
        assert reported.wait(10)
        reported.clear()
    dog.close()
    assert "in phase: step" in told[0] and "thread " not in told[0]
    assert "thread MainThread:" in told[1]


def test_the_deadline_gives_up_once_with_the_phase():
    reasons = []
    given_up = threading.Event()

    def give_up(reason):
        reasons.append(reason)
        given_up.set()

    dog = Watchdog(stall_seconds=0.04, deadline_seconds=0.1, give_up=give_up)
    dog.beat("load weights")
    assert given_up.wait(10)
    dog.close()
    assert len(reasons) == 1
    assert "(phase: load weights)" in reasons[0] and "--startup-timeout" in reasons[0]


def test_a_disarmed_deadline_never_comes():
    reasons = []
    dog = Watchdog(stall_seconds=0.04, deadline_seconds=0.05, give_up=reasons.append)
    dog.disarm()
    threading.Event().wait(0.3)
    dog.close()
    assert reasons == []
