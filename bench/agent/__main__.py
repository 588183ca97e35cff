"""`python -m bench.agent`: what the agent costs beside its model, on a desktop of its own.

A scripted model answers at once, Xvfb shows 1280x720 pixels, and the target program of the tests
draws a dot for each click, so every step has an effect to wait for. Prints the table of
docs/benchmarks/agent.md.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import httpx

from pagoda.base.machine import cpu_facts
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.models.dialogue import ChatModel, Reply, Usage
from pagoda_agent.secrets import Secrets
from pagoda_agent.service.app import Service
from pagoda_agent.service.gate import Gate
from pagoda_agent.service.server import Server
from pagoda_agent.settings import Settings
from pagoda_agent.task.operator import Operator
from tests.agent.rig.desktop import start_desktop
from tests.agent.rig.target import Target, start_target

_PREVIEW_SECONDS = 20.0
_IDLE_SECONDS = 10.0
_STOPS = 20


class Clicker:
    """Clicks here and there, so many times; notes the seconds between its answer and the next
    question, which are the agent's."""

    def __init__(self, steps: int):
        self.left = steps
        self.overheads: list[float] = []
        self._answered = 0.0
        self.at_step: dict[int, tuple[int, int]] = {}
        """(resident bytes, open files) by how many steps are left."""

    async def complete(self, messages: object, tools: object = ()) -> Reply:
        now = time.perf_counter()
        if self._answered:
            self.overheads.append(now - self._answered)
        self.at_step[self.left] = (_resident(), len(os.listdir("/proc/self/fd")))
        self.left -= 1
        x, y = 50 + 37 * self.left % 500, 50 + 53 * self.left % 850
        text = f"# step {self.left}\nmouse {x} {y} 1" if self.left >= 0 else "Done"
        self._answered = time.perf_counter()
        return Reply(text, usage=Usage(1000, 900, 20))

    async def served(self) -> list[str]:
        return ["scripted"]

    async def close(self) -> None:
        pass


class Typist:
    """Types what takes seconds."""

    async def complete(self, messages: object, tools: object = ()) -> Reply:
        return Reply("typestr " + "x" * 5000, usage=Usage(1000, 900, 20))

    async def served(self) -> list[str]:
        return ["scripted"]

    async def close(self) -> None:
        pass


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


@contextlib.asynccontextmanager
async def _operating(url: str, folder: Path, model: ChatModel) -> AsyncIterator[Operator]:
    settings = Settings(model="scripted", profile="nanokvm", max_rounds=10_000)
    driver = make_driver(url)
    operator = Operator(driver, settings, Secrets({}), folder, make_model=lambda *_: model)
    await driver.open()
    try:
        yield operator
    finally:
        await operator.close()


async def _steps(url: str, folder: Path, count: int) -> Clicker:
    clicker = Clicker(count)
    async with _operating(url, folder, clicker) as operator:
        control = await operator.start("click here and there")
        await control.wait()
        if control.state != "done":
            raise SystemExit(f"The task ended otherwise: {control.reason}")
    return clicker


async def _stops(url: str, folder: Path, target: Target) -> list[float]:
    """Seconds from each pause, in the middle of typing, until no key is down."""
    seconds = []
    async with _operating(url, folder, Typist()) as operator:
        for _ in range(_STOPS):
            target.reset()
            control = await operator.start("type")
            await target.saw("typing", lambda state: len(state["keys"]) > 20)
            began = time.perf_counter()
            await control.pause()
            while target.desktop.observer.keys_down():
                await asyncio.sleep(0.001)
            seconds.append(time.perf_counter() - began)
            await operator.reset()
    return seconds


async def _served(url: str, folder: Path) -> tuple[float, float]:
    """Shares of a core: with a viewer of the preview, and with nobody."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with _operating(url, folder, Clicker(0)) as operator:
        service = Service(operator, Gate("127.0.0.1", port), folder / "agent.json", lambda: None)
        server = Server(service)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            token = service.gate.token
            (await client.post("/api/session", json={"token": token})).raise_for_status()
            idle = await _share(asyncio.sleep(_IDLE_SECONDS))
            preview = await _share(_watch(client))
        server.should_exit = True
        await serving
    return preview, idle


async def _share(work: Awaitable[None]) -> float:
    """CPU seconds of this process for each second of the work."""
    began, used = time.monotonic(), time.process_time()
    await work
    return (time.process_time() - used) / (time.monotonic() - began)


async def _watch(client: httpx.AsyncClient) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PREVIEW_SECONDS):
            async with client.stream("GET", "/api/screen") as reply:
                async for _ in reply.aiter_bytes():
                    pass


def _table(clicker: Clicker, stops: list[float], preview: float, idle: float) -> str:
    overheads = sorted(clicker.overheads)
    settled = [left for left in clicker.at_step if left >= 0]
    # The first steps fill caches and pools.
    first, last = clicker.at_step[max(settled) - 50], clicker.at_step[min(settled)]
    p95 = overheads[int(0.95 * len(overheads))]
    rows = [
        ("overhead of a step, median", f"{1000 * statistics.median(overheads):.0f} ms", "150 ms"),
        ("overhead of a step, 95th percentile", f"{1000 * p95:.0f} ms", "400 ms"),
        (f"a stop while it types, the slowest of {len(stops)}", f"{1000 * max(stops):.0f} ms",
         "200 ms"),
        (f"memory after {len(overheads)} steps", f"{(last[0] - first[0]) / 2**20:+.1f} MiB",
         "+30 MiB"),
        ("open files", f"{last[1] - first[1]:+d}", "+0"),
        ("a viewer of the screen, of a core", f"{100 * preview:.1f}%", "15%"),
        ("nobody there, of a core", f"{100 * idle:.2f}%", "1%"),
    ]  # fmt: skip
    lines = ["| | measured | must be below |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="at least 60 (500)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        desktops = Path(folder) / "desktop"
        with start_desktop(desktops) as desktop, start_target(desktop) as target:
            url = f"x11://{desktop.display}"
            clicker = asyncio.run(_steps(url, Path(folder) / "runs", args.steps))
            stops = asyncio.run(_stops(url, Path(folder) / "stops", target))
            preview, idle = asyncio.run(_served(url, Path(folder) / "served"))
    print(_table(clicker, stops, preview, idle))
    facts = cpu_facts()
    print(f"\n{time.strftime('%Y-%m-%d')}, {facts.name}, {args.steps} steps, Xvfb 1280x720.")


if __name__ == "__main__":
    main()
