"""The engine's process, before it can say anything."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pagoda.engine.processes import child
from pagoda.engine.processes.child import exit_cause
from pagoda.engine.processes.client import EngineClient
from tests.engine.test_client import is_gone, wait_until


async def test_ctrl_c_of_the_terminal_is_its_parents_alone(tiny_config, capfd):
    client = EngineClient.launch(tiny_config)
    os.kill(client.pid, signal.SIGINT)  # as a terminal sends it to all
    await client.wait_ready(60)
    await client.shutdown()
    assert "Traceback" not in capfd.readouterr().err
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def ignores_interrupts(pid: int) -> bool:
    mask = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return mask is not None and bool(int(mask[1], 16) & 1 << signal.SIGINT - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes up who lost its parent")
@pytest.mark.parametrize("module", ["pagoda.engine.processes.main", "pagoda.engine.ranks.main"])
async def test_a_stopped_process_does_not_outlive_its_parent(module):
    """Its end is seen at the end of stdin, which nobody reads who is stopped."""
    program = f"""if True:
        import subprocess, sys
        command = [sys.executable, "-m", {module!r}]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        print(subprocess.Popen(command, **pipes).pid, flush=True)
        input()
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    pid = int(await parent.stdout.readline())
    try:
        await wait_until(lambda: ignores_interrupts(pid))
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        await parent.wait()
        await wait_until(lambda: is_gone(pid))
    finally:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


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
