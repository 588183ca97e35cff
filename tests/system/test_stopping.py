"""A server that is told to stop is gone within two seconds and leaves nothing behind."""

import signal
import subprocess
import sys

import openai
import pytest

from tests.system.harness import Served, environment_of, wait_until

TWO_SECONDS = 2.0


@pytest.fixture
def served(serve, smollm2_gguf) -> Served:
    server = serve(smollm2_gguf)
    server.wait_ready(60)
    assert len(server.engines()) == 2
    assert len(server.socket_folders()) == 1
    return server


def long_stream(served: Served) -> openai.Stream:
    """A reply that is under way and would go on for minutes."""
    stream = served.openai().completions.create(
        model=served.name, prompt="Once", max_tokens=4000, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    for _ in range(3):
        next(stream)
    return stream


def test_interrupt_without_work(served):
    assert served.stop(signal.SIGINT, TWO_SECONDS) == 0
    served.assert_nothing_left()
    assert "Traceback" not in "\n".join(served.log)


def test_interrupt_in_mid_stream(served):
    stream = long_stream(served)
    assert served.stop(signal.SIGINT, TWO_SECONDS) == 0
    with pytest.raises(openai.APIError, match="stopped"):
        list(stream)
    served.assert_nothing_left()
    assert "Traceback" not in "\n".join(served.log)


def test_interrupt_while_it_loads(serve, smollm2_gguf):
    server = serve(smollm2_gguf)
    # The engine's process writes its first line once it has torch and begins to load.
    wait_until(lambda: any("[engine.startup]" in line for line in server.log))
    assert server.stop(signal.SIGINT, TWO_SECONDS) in (0, 130)
    server.assert_nothing_left()
    assert "Traceback" not in "\n".join(server.log)


def test_the_stop_command(served):
    command = [sys.executable, "-m", "pagoda", "stop", "--port", str(served.port)]
    done = subprocess.run(
        command, env=environment_of(served), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (
        0, f"The server on port {served.port} has stopped.\n",
    )  # fmt: skip
    assert served.wait(TWO_SECONDS) == 0
    served.assert_nothing_left()


def test_a_killed_server_takes_its_engine_along(served):
    """Nobody can clean up behind kill -9 but the engine, which notices."""
    engine = served.engine_pid()
    served.process.kill()
    served.wait(TWO_SECONDS)
    wait_until(lambda: engine not in served.processes())
    assert served.socket_folders() == []
