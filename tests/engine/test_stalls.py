"""Engines that stand still as real processes do. They wait for the deadline together."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.supervision import SupervisionLimits
from tests.engine import stub_engine

ROOT = Path(__file__).parents[2]
PATIENCE = 60


def request(name: str, what: int) -> AddRequest:
    sampling = SamplingParams(max_tokens=5, temperature=0.0)
    return AddRequest(req_id=name, prompt_token_ids=[what], sampling=sampling)


async def tokens(client: EngineClient, name: str, what: int = stub_engine.COUNTS) -> list[int]:
    return [t async for delta in client.generate(request(name, what)) for t in delta.token_ids]


class Stub:
    """A client of the stub, ended when done."""

    def __init__(self, max_restarts: int = 5) -> None:
        limits = SupervisionLimits(stall_seconds=0.1, max_restarts=max_restarts)
        options = LaunchOptions("error", module="tests.engine.stub_engine", supervision=limits)
        self.client = EngineClient(EngineConfig(), options)

    async def __aenter__(self) -> EngineClient:
        await self.client.wait_ready(PATIENCE, lambda step: None)
        return self.client

    async def __aexit__(self, *error: object) -> None:
        await self.client.shutdown()


async def stopped() -> None:
    """By SIGSTOP, while it is idle."""
    async with Stub() as client:
        expected = await tokens(client, "first")
        pid = client.pid
        os.kill(pid, signal.SIGSTOP)
        # It waits inside of the stopped process, and then for the next one.
        assert await tokens(client, "waits") == expected
        assert client.pid != pid and client.restarts == 1


async def stuck(what: int, words: str) -> None:
    """In a step that never ends."""
    async with Stub(max_restarts=0) as client:
        with pytest.raises(EngineDeadError, match=words):
            await tokens(client, "stuck", what)
        assert client.state == "dead"


async def suspect() -> None:
    """A request of which two engines died is told of it, and others go on."""
    async with Stub() as client:
        with pytest.raises(EngineDeadError, match="exit status 3"):
            await tokens(client, "suspect", stub_engine.DIES)
        await client.wait_ready(PATIENCE, lambda step: None)
        assert len(await tokens(client, "other")) == 5 and client.restarts == 2


async def own_stop() -> None:
    """Who was stopped itself kills nobody, however long that was."""
    program = """
        import asyncio
        from tests.engine.test_stalls import Stub, tokens

        async def main():
            async with Stub() as client:
                print("ready", flush=True)
                await asyncio.to_thread(input)
                await asyncio.sleep(0.5)
                print(len(await tokens(client, "later")), client.restarts, flush=True)

        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert await parent.stdout.readline() == b"ready\n"
        parent.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)
        parent.send_signal(signal.SIGCONT)
        parent.stdin.write(b"\n")
        assert await parent.stdout.readline() == b"5 0\n"
        assert await parent.wait() == 0
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()


async def test_engines_that_stand_still(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(
            stopped(),
            stuck(stub_engine.SLEEPS, r"made no progress for .* \(phase: step\) and was killed"),
            stuck(stub_engine.HOLDS_THE_LOCK, "said nothing for .* and was killed"),
            suspect(),
            own_stop(),
        )
