import pytest

from pagoda.core.messages import EngineProgress
from pagoda.engine.start import progress
from pagoda.engine.start.progress import PromptDisplay, StartupDisplay


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def terminal(monkeypatch, is_terminal):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: is_terminal)


def test_without_a_terminal_a_line_every_ten_seconds(clock, monkeypatch, caplog):
    terminal(monkeypatch, False)
    caplog.set_level("INFO", logger="pagoda")
    display = StartupDisplay()
    for second in range(35):
        clock.now = 100.0 + second
        display.update(EngineProgress("load weights", second << 20, 100 << 20))
    assert [record.getMessage() for record in caplog.records] == [
        f"load weights: {mib}.00 MiB of 100.00 MiB" for mib in (10, 20, 30)
    ]


def test_a_bar_appears_only_for_what_takes_longer_than_a_second(clock, monkeypatch):
    terminal(monkeypatch, True)
    display = StartupDisplay()
    display.update(EngineProgress("load weights", 1, 10))
    clock.now += 0.5
    display.update(EngineProgress("load weights", 5, 10))
    assert display._bar is None
    clock.now += 1.0
    display.update(EngineProgress("load weights", 7, 10))
    assert display._bar.tasks[0].completed == 7
    display.update(EngineProgress("warm up"))
    assert display._bar is None


def test_prompts_show_on_a_terminal_only(clock, monkeypatch):
    for is_terminal, asked, shown in ((True, True, 3), (True, False, None), (False, True, None)):
        terminal(monkeypatch, is_terminal)
        with PromptDisplay(5, asked) as display:
            clock.now += 2.0
            display.update(3)
            assert (display._bar and display._bar.tasks[0].completed) == shown
