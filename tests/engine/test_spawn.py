"""The engine's process that is started before it is known what it is to do."""

import subprocess

import pytest

from pagoda.cli.main import main
from pagoda.engine.processes import spawn as spawning
from pagoda.engine.processes.spawn import ENGINE, Spawned, spawn, spawned_early


@pytest.fixture
def processes(monkeypatch):
    """Those that were started, in place of engines."""
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str) -> Spawned:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        return Spawned(started[-1], 0.0)

    monkeypatch.setattr(spawning, "spawn", start)
    yield started
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()


def test_the_early_process_is_given_out_once(processes):
    with spawned_early() as next_one:
        (early,) = processes
        assert next_one("another.module").process is processes[1]
        assert next_one(ENGINE).process is early
        assert next_one(ENGINE).process is processes[2]
    assert [process.poll() for process in processes] == [None] * 3


def test_nobody_took_it(processes):
    with pytest.raises(KeyboardInterrupt), spawned_early():
        raise KeyboardInterrupt
    (early,) = processes
    assert early.returncode is not None


def test_a_server_that_cannot_start_leaves_none(processes, tmp_path, capsys):
    assert main(["serve", str(tmp_path / "nothing"), "--port", "0"]) == 1
    (early,) = processes
    assert early.returncode is not None


def test_an_engine_that_is_told_nothing_leaves(capfd):
    process, _ = spawn(ENGINE)
    process.stdin.close()
    assert process.wait(60) == 1
    assert capfd.readouterr().err == ""


def test_an_engine_that_is_started_by_hand_says_what_it_is(capfd):
    process, _ = spawn(ENGINE)
    process.stdin.write(b"hello\n")
    process.stdin.close()
    assert process.wait(60) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "`pagoda serve` starts it" in line
