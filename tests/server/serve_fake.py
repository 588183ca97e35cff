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
from pagoda.engine.aside.direct import Direct
from pagoda.engine.aside.jobs import BOUNDS, Bounds, RenderChat
from pagoda.engine.aside.workers import Workers
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.server import launch
from tests.server.fakes import REPLY, FakeClient, FakeTextSide

_BOUNDS = {**BOUNDS, RenderChat: Bounds(2, 512 << 20)}
ENDLESS = "{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}"


class LaunchedClient(FakeClient):
    """Takes a moment to load; drains like the real one."""

    config = EngineConfig(model=ModelConfig(model="fake"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phase = "load weights"
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

    async def wait_end(self) -> None:
        await asyncio.get_running_loop().create_future()  # nothing ends it but its server

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


def real_client(server: ServerConfig) -> EngineClient:
    """Around a process that dies when a prompt says so (tests/engine/stub_engine.py)."""
    supervision = SupervisionLimits(max_restarts=server.max_engine_restarts)
    options = LaunchOptions(module="tests.engine.stub_engine", supervision=supervision)
    return EngineClient(LaunchedClient.config, options)


def _workers(model: ModelConfig) -> Workers:
    """Real ones, whose templates have no budget but the process's."""
    return Workers(model, module="tests.engine.careless_zygote", bounds=_BOUNDS).begin()


def main() -> int:
    config = EngineConfig(model=ModelConfig(model="fake"))
    launch._fetch = lambda model, timeout: model
    text: dict[str, Any] = {}
    abilities: dict[str, Any] = {}
    if "sees" in sys.argv:
        from tests.server.seeing import ABILITIES, text_side

        text, abilities = text_side(), ABILITIES
    reply = b"." * 10_000 if "crawls" in sys.argv else REPLY.encode()

    def launch_engine(spawner: Any, engine: EngineConfig, server: ServerConfig, room: Any) -> Any:
        if "stub" in sys.argv:
            return real_client(server)
        return LaunchedClient(
            lambda request: reply, state="starting", delay=0.05, abilities=abilities
        )

    launch._launch = launch_engine
    from pagoda.server import lifecycle

    lifecycle.load_text_side = lambda config: FakeTextSide(**text)
    lifecycle.start_workers = lambda config: Direct(FakeTextSide(**text))
    if "sees" in sys.argv:
        lifecycle.start_workers = lambda config: _workers(ModelConfig(model="sees"))
    if "attacked" in sys.argv:
        path = sys.argv[sys.argv.index("attacked") + 1]
        model = ModelConfig(model=path, chat_template=ENDLESS)
        lifecycle.start_workers = lambda config: _workers(model)
    port, *how = sys.argv[1:]
    flags = FlagParser()
    add_flags(flags, ServerConfig)
    # `how` comes before the flags.
    given = flags.parse_args([f"--port={port}", *itertools.dropwhile(lambda w: w[0] != "-", how)])
    return launch.run_server(config, from_namespace(ServerConfig, given))


if __name__ == "__main__":
    raise SystemExit(main())
