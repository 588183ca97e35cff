"""What a count shows where nobody watches it move."""

import pytest

from pagoda.cli import bars
from pagoda.cli.bars import CountBar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


def test_into_a_pipe_a_line_every_ten_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with CountBar("rounds") as bar:
        for done in range(1, 31):
            clock[0] += 1.0
            bar.update(done, 30)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["rounds: 10 of 30", "rounds: 20 of 30", "rounds: 30 of 30"]
    assert printed.out == ""


def test_a_short_count_and_one_that_is_hidden_print_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with CountBar("rounds") as bar:
        clock[0] += 9.0
        bar.update(30, 30)
    with CountBar("requests", show=False) as bar:
        clock[0] += 99.0
        bar.update(1, 2)
    assert capsys.readouterr().err == ""
