"""What happens to engines and to the server meanwhile, by a seed."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import httpx

from pagoda.base.errors import PagodaError
from tools.soak.load import Load
from tools.soak.trouble import SERVER

_LOOKS = 0.25
# A server that was told to end, or a model to sleep, stays so for up to so long.
_PAUSE = 4.0


class Chaos:
    """Harms one thing after the other, and waits each time until all is well again."""

    def __init__(self, load: Load, *, seed: int, recovery_seconds: float, stop_seconds: float):
        """`recovery_seconds`: by then a harmed model serves again, or that is a fault.
        `stop_seconds`: by then somebody has noticed that an engine is stopped."""
        self._load = load
        self._chance = random.Random(f"{seed}/chaos")
        self._recovery_seconds = recovery_seconds
        self._stop_seconds = stop_seconds
        self.turn = asyncio.Lock()
        """Held while something is harmed."""
        self.done: Counter[str] = Counter()

    async def run(self, kinds: Sequence[str], every: float, seconds: float) -> None:
        """Something of `kinds` about `every` seconds, for so long."""
        end = time.monotonic() + seconds
        while kinds:
            await asyncio.sleep(every * self._chance.uniform(0.5, 1.5))
            if time.monotonic() > end:
                return
            async with self.turn:
                await self.harm(self._chance.choice(kinds))

    async def harm(self, kind: str) -> None:
        model = SERVER if kind == "server" else self._chance.choice([*self._load.first])
        with self._load.trouble.of(model):
            self.done[kind] += 1
            try:
                await KINDS[kind](self, model)
            except (httpx.HTTPError, OSError, PagodaError) as error:
                self._fault(f"{kind} of {model}: {type(error).__name__}: {error}")
            await self._recovered(kind, model)

    async def _kill(self, model: str) -> None:
        self._signal(model, signal.SIGKILL)

    async def _stop(self, model: str) -> None:
        pid = self._signal(model, signal.SIGSTOP)
        if pid is None:
            return
        deadline = time.monotonic() + self._stop_seconds
        while self._load.house.engines().get(model) == pid:
            if time.monotonic() > deadline:
                self._fault(f"nobody noticed in {self._stop_seconds:g} s that {model} was stopped")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                return
            await asyncio.sleep(_LOOKS)

    def _signal(self, model: str, number: int) -> int | None:
        pid = self._load.house.engines().get(model)
        if pid is not None:
            os.kill(pid, number)
        return pid

    async def _sleep(self, model: str) -> None:
        level = self._chance.choice((1, 2))
        await self._operate(f"/sleep?level={level}&model={model}")
        await asyncio.sleep(self._chance.random() * _PAUSE)
        await self._operate(f"/wake_up?model={model}")

    async def _reload(self, model: str) -> None:
        await self._operate("/models/unload", model=model)
        if self._chance.random() < 0.5:  # else the next request loads it
            await self._operate("/models/load", model=model)

    async def _server(self, model: str) -> None:
        await self._restart_server()

    async def _operate(self, path: str, **body: str) -> None:
        status = await self._load.post(path, **body)
        if status != 200:
            self._fault(f"{path}: {status}")

    async def _restart_server(self) -> None:
        house = self._load.house
        status = await asyncio.to_thread(house.stop)
        if status != 0:
            self._fault(f"the server ended with exit status {status}")
        if left := house.left_behind():
            self._load.faults.add("left behind", f"by a server that ended: {left}")
        await asyncio.to_thread(house.start)

    async def _recovered(self, kind: str, model: str) -> None:
        models = [*self._load.first] if model == SERVER else [model]
        if all([await self._serves_in_time(each) for each in models]):
            return
        self._fault(f"{kind} of {model}: not well again after {self._recovery_seconds:g} s")
        with self._load.trouble.of(SERVER):
            await self._restart_server()

    async def _serves_in_time(self, model: str) -> bool:
        deadline = time.monotonic() + self._recovery_seconds
        while not self._load.house.ended and time.monotonic() < deadline:
            if await self._load.serves(model):
                return True
            await asyncio.sleep(_LOOKS)
        return False

    def _fault(self, words: str) -> None:
        self._load.faults.add("recovery", words)


KINDS: dict[str, Callable[[Chaos, str], Awaitable[None]]] = {
    "kill": Chaos._kill,
    "stop": Chaos._stop,
    "sleep": Chaos._sleep,
    "reload": Chaos._reload,
    "server": Chaos._server,
}
"""kill: SIGKILL to an engine. stop: SIGSTOP to one. sleep: a model, and it wakes. reload: a model
is unloaded, and loaded again. server: SIGTERM, and another one on the same kept prefixes."""
