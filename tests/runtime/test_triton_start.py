"""The tool that says how long kernels take to compile keeps what it has, and adds it up."""

import sys
from contextlib import suppress

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from tools import triton_start
from tools.triton_start import Row


def row(mark: str, cpu: float) -> Row:
    return Row("Llama-3.1-8B Q4_K_M", 90, "gemm.tiles", mark, cpu, 2 * cpu)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """`main` for kernels with these marks, of which some seconds are known."""

    def run(marks: str, seconds: dict[str, float]) -> list[str]:
        """The marks that were compiled."""
        compiled = []

        def play(missing, jobs):
            for _, _, mark in missing:
                if mark not in seconds:
                    raise KeyboardInterrupt
                compiled.append(mark)
                yield row(mark, seconds[mark])

        arguments = ["--models", "Llama", "--targets", "90", "--rows", str(tmp_path / "rows.csv")]
        monkeypatch.setattr(sys, "argv", ["triton_start", *arguments])
        monkeypatch.setattr(triton_start, "_marked", lambda model, target: dict.fromkeys(marks))
        monkeypatch.setattr(triton_start, "_compiled", play)
        with suppress(KeyboardInterrupt):
            triton_start.main()
        return compiled

    return run


def test_an_interrupted_run_goes_on(run, capsys):
    assert run("abc", {"a": 3.0, "b": 1.0}) == ["a", "b"]
    assert "|" not in capsys.readouterr().out
    assert run("abcd", {"c": 2.0, "d": 4.0}) == ["c", "d"]
    said = capsys.readouterr().out
    # Four processes: each has one kernel.
    assert "| Llama-3.1-8B Q4_K_M | sm_90 | 4 | 10 | 4 | 4 | `gemm.tiles`, 4.0 |" in said
    assert run("ab", {}) == []
    assert "| 2 | 4 | 3 | 3 | `gemm.tiles`, 3.0 |" in capsys.readouterr().out


def test_processes_take_kernels_in_turn():
    rows = [row(str(seconds), seconds) for seconds in (3.0, 1.0, 2.0, 2.0)]
    assert [triton_start._makespan(rows, jobs) for jobs in (1, 2, 3)] == [8.0, 5.0, 3.0]
