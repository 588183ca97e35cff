"""The engine's process, before it can say anything."""

import os
import signal

import pytest

from pagoda.engine import child
from pagoda.engine.child import exit_cause
from pagoda.engine.client import EngineClient


async def test_ctrl_c_of_the_terminal_is_its_parents_alone(tiny_config, capfd):
    client = EngineClient.launch(tiny_config)
    os.kill(client.pid, signal.SIGINT)  # as a terminal sends it to all
    await client.wait_ready(60)
    await client.shutdown()
    assert "Traceback" not in capfd.readouterr().err
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(
    ("before", "now", "said", "unsaid"),
    [
        ((3, 1), (3, 1), "something else sent it", "quantization"),
        ((3, 1), (4, 1), "the system ended a process for lack of memory", "something else"),
        ((3, 1), (4, 2), "ended a process of this container for lack of memory", "something else"),
        (None, (4, 2), "whether memory ran out is not known", "something else"),
        ((3, 1), None, "whether memory ran out is not known", "something else"),
    ],
)
def test_memory_is_blamed_where_the_system_says_so(monkeypatch, before, now, said, unsaid):
    monkeypatch.setattr(child, "oom_kills", lambda: now)
    cause = exit_cause(-signal.SIGKILL, "The engine", before)
    assert cause.startswith("The engine was ended by SIGKILL; ")
    assert said in cause and unsaid not in cause
    assert exit_cause(-signal.SIGTERM, "It", before) == "It was ended by SIGTERM."
