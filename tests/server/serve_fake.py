"""`run_server` in its own process, around a fake engine: `serve_fake.py PORT [how] [flags]`."""

import asyncio
import itertools
import subprocess
import sys
from typing import Any

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.flags import add_flags, from_namespace
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig
from pagoda.server import launch
from tests.server.fakes import REPLY, FakeClient, FakeTextSide


class LaunchedClient(FakeClient):
    """Takes a moment to load; drains like the real one."""

    config = EngineConfig(model=ModelConfig(model="fake"))
    phase = "load weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Ends with this process, whatever becomes of it.
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_ready(self, timeout: float | None = None, progress: Any = None) -> None:
        await asyncio.sleep(0.3)
        if "fails" in sys.argv:
            raise EngineDeadError("The engine could not load: out of memory.")
        if "hangs" in sys.argv:
            await asyncio.sleep(3600)
        self.state = "ready"

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        waited = 0.0
        while self.running and waited < drain_seconds and self.process.poll() is None:
            await asyncio.sleep(0.01)
            waited += 0.01
        if "saves" in sys.argv:
            await asyncio.sleep(2)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stop()


def main() -> int:
    config = EngineConfig(model=ModelConfig(model="fake"))
    launch._fetch = lambda model, timeout: model
    reply = b"." * 10_000 if "crawls" in sys.argv else REPLY.encode()
    launch._launch = lambda engine, server, room: LaunchedClient(
        lambda request: reply, state="starting", delay=0.05
    )
    from pagoda.server import lifecycle

    lifecycle.load_text_side = lambda config: FakeTextSide()
    port, *how = sys.argv[1:]
    flags = FlagParser()
    add_flags(flags, ServerConfig)
    # `how` comes before the flags.
    given = flags.parse_args([f"--port={port}", *itertools.dropwhile(lambda w: w[0] != "-", how)])
    return launch.run_server(config, from_namespace(ServerConfig, given))


if __name__ == "__main__":
    raise SystemExit(main())
