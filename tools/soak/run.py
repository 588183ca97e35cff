"""A whole run: learn, look, load with chaos and lulls, look again, and judge."""

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass

import httpx

from tools.soak import counters, gates, processes
from tools.soak.cases import rude, sights, texts, vectors
from tools.soak.chaos import Chaos
from tools.soak.gates import Gate, Slope
from tools.soak.house import SIGHT, TEXT, VECTORS, House
from tools.soak.load import Load
from tools.soak.trouble import SERVER

_PROGRESS_SECONDS, _SAMPLE_SECONDS, _SETTLE_SECONDS = 10.0, 2.0, 15.0
# So long a run must say how memory grows.
_LONG_SECONDS = 1800.0
# What no reply, scrape or restart may do; each is a gate.
_NEVER = ("replies", "hangs", "rude requests", "scrapes", "recovery", "left behind", "metrics",
          "blocks and requests of an idle server", "deaths of the server")  # fmt: skip


@dataclass(frozen=True)
class Plan:
    seconds: float
    clients: int
    seed: int
    kinds: tuple[str, ...]
    chaos_seconds: float
    """About so long between two harms."""
    calm: float
    """The last share of the time, without chaos: processes live long enough for a slope."""
    lull_seconds: float
    """So often all clients pause, and what is left is looked at."""
    idle_seconds: float
    deadline: float
    recovery_seconds: float
    stop_seconds: float


class Run:
    def __init__(self, house: House, plan: Plan):
        self._house, self._plan = house, plan
        cases = [*texts(TEXT), *vectors(VECTORS), *sights(SIGHT)]
        self.load = Load(house, cases, rude(TEXT, SIGHT), plan.deadline)
        self.chaos = Chaos(
            self.load, seed=plan.seed,
            recovery_seconds=plan.recovery_seconds, stop_seconds=plan.stop_seconds,
        )  # fmt: skip
        self.record = processes.Record()
        self._idle: list[tuple[str, float]] = []
        self._learned = 0
        self._begun = 0.0
        self._seconds = 0.0

    async def __call__(self) -> None:
        load, plan = self.load, self._plan
        await load.learn()
        self._learned = load.outcomes.total()
        self._begun = time.monotonic()
        workers = [
            asyncio.create_task(load.work(f"{plan.seed}/{number}"))
            for number in range(plan.clients)
        ]
        beside = [asyncio.create_task(self._sample()), asyncio.create_task(self._report())]
        harmful = (1 - plan.calm) * plan.seconds
        harming = asyncio.create_task(self.chaos.run(plan.kinds, plan.chaos_seconds, harmful))
        watched = {*beside, *workers}
        await self._lull("at the start")
        end = time.monotonic() + plan.seconds
        while (left := end - time.monotonic()) > 0:
            pause = min(left, plan.lull_seconds)
            # Chaos ends before the load does.
            now = watched if harming.done() else watched | {harming}
            done, _ = await asyncio.wait(now, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a fault of the soak itself ends it
            if end - time.monotonic() > plan.lull_seconds / 2:
                await self._lull()
        await harming
        await self._lull("at the end")
        self._seconds = time.monotonic() - self._begun
        load.over = True
        for task in beside:
            task.cancel()
        await asyncio.gather(*workers, *beside, return_exceptions=True)
        await load.close()
        await self._end()

    async def _lull(self, idle: str = "") -> None:
        """Hold the clients, and look at what is left; `idle` says when CPU time was measured."""
        async with self.chaos.turn, self.load.quiet():
            for model in self.load.first:  # all loaded, as at every quiet look
                if not await self.load.serves(model):
                    self.load.faults.add("recovery", f"{model} does not serve a quiet server")
            values = await self._settled()
            if words := counters.busy(values):
                self.load.faults.add("blocks and requests of an idle server", words)
            for words in gates.metrics_faults(values, self._house.asked):
                self.load.faults.add("metrics", words)
            if left := self._house.left_behind():
                self.load.faults.add("left behind", f"on an idle server: {left}")
            # Pools grow under the first load; what they hold behind it is what they keep.
            self._look(quiet=self.load.outcomes.total() > self._learned)
            if idle:
                pids = [*self._house.roles()]
                share = await asyncio.to_thread(processes.idle_share, pids, self._plan.idle_seconds)
                self._idle.append((idle, share))

    async def _settled(self) -> dict[str, float]:
        """/metrics once nothing runs, or as it is after a while; the connection is closed."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            values = counters.read(await self.load.text_of("/metrics"))
            if not counters.busy(values) or time.monotonic() > deadline:
                return values
            await asyncio.sleep(0.1)

    def _look(self, *, quiet: bool = False) -> None:
        self.record.sample(self._house.roles(), self.load.served, quiet=quiet)

    async def _sample(self) -> None:
        while True:
            if not self._house.ended:
                self._look()
            elif not self.chaos.turn.locked():
                async with self.chaos.turn:
                    log = self._house.server.log[-3:]
                    self.load.faults.add("deaths of the server", " / ".join(log))
                    with self.load.trouble.of(SERVER):
                        await asyncio.to_thread(self._house.start)
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            counts = ", ".join(f"{kind} {n}" for kind, n in sorted(self.load.outcomes.items()))
            done = ", ".join(f"{kind} {n}" for kind, n in sorted(self.chaos.done.items()))
            print(
                f"{time.monotonic() - self._begun:.0f} s: {counts}; chaos: {done or 'none'}; "
                f"faults {self.load.faults.counts.total()}",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    async def _end(self) -> None:
        pids = [*self._house.roles()]
        status = await asyncio.to_thread(self._house.stop)
        if status != 0:
            self.load.faults.add("recovery", f"the server ended with exit status {status}")
        if left := self._house.left_behind():
            self.load.faults.add("left behind", f"by the last server: {left}")
        if alive := [pid for pid in pids if (processes.PROC / str(pid)).exists()]:
            self.load.faults.add("left behind", f"{len(alive)} processes")

    def gates(self) -> list[Gate]:
        counts = self.load.faults.counts
        found = [gates.none(kind, counts[kind]) for kind in _NEVER]
        slopes = self._slopes()
        found += gates.memory(slopes)
        # A short run says nothing of memory; a long one that says nothing has held nothing to it.
        if self._plan.seconds >= _LONG_SECONDS:
            silent = {"server", TEXT} - {slope.process for slope in slopes}
            found.append(gates.none("long-lived processes whose memory is not known", len(silent)))
        for (what, role), numbers in sorted(self.record.quiet.items()):
            found.append(gates.grown(what, role, numbers))
        found += [gates.idle_cpu(when, share) for when, share in self._idle]
        return found

    def _slopes(self) -> list[Slope]:
        fits = [gates.slope(role, seen) for (role, _), seen in self.record.memory.items()]
        return [fit for fit in fits if fit is not None]

    def figures(self) -> dict[str, str]:
        outcomes, plan = self.load.outcomes, self._plan
        asked = outcomes.total() - outcomes["rude"] - outcomes["scrapes"]
        return {
            "length, quiet looks included": f"{self._seconds / 60:.1f} min",
            "seed, clients": f"{plan.seed}, {plan.clients}",
            "requests with a known answer": str(asked),
            "came whole": str(outcomes["complete"]),
            "clients that left": str(outcomes["left"]),
            "cut with an error, by chaos": str(outcomes["cut"]),
            "refused, by chaos": str(outcomes["refused"]),
            "rude requests": str(outcomes["rude"]),
            "scrapes": str(outcomes["scrapes"]),
            "chaos": ", ".join(f"{k} {n}" for k, n in sorted(self.chaos.done.items())) or "none",
            "servers started": str(self._house.starts),
            "processes that lived long enough for a slope": str(len(self._slopes())),
            "engine processes": str(sum(role != "server" for role, _ in self.record.memory)),
        }


def version_of(url: str) -> str:
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        return str(httpx.get(f"{url}/version", timeout=30).json()["version"])
    return "unknown"
