"""An engine process that is played: the real loop, core and scheduler, as events of the loop."""

import asyncio
import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import CapacityError
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    EngineDied,
    EngineProgress,
    EngineReady,
    Shutdown,
    StepOutputs,
    Utility,
)
from pagoda.engine.core import EngineCore, describe
from pagoda.engine.executor import DeviceExecutor, LocalExecutor
from pagoda.engine.kv_disk import KeptPrefixes
from pagoda.engine.kv_journal import Bytes, Journal, record_of
from pagoda.engine.processes.activity import Activity
from pagoda.engine.processes.child import LaunchOptions, exit_cause
from pagoda.engine.processes.main import EngineLoop
from tests.simulation.model import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    Faults,
    ModelPlan,
    SimGrammars,
    SimRunner,
)
from tests.simulation.wire import SimClientEnd, SimEngineEnd, Wire
from tests.unit.core.fake_runner import VOCAB

if TYPE_CHECKING:
    from tests.simulation.world import World

# A turn in which nothing is computed takes this long.
_TURN_SECONDS = 2e-5
_KV_BYTES = 1 << 20
# No scenario has work for so many turns without a rest.
_MOST_TURNS = 20_000
# As the watchdog's thread.
_HEARTBEAT_SECONDS = 1.0
# As the real end of the wire.
_LINGER_SECONDS = 0.5


class StartFaultError(Exception):
    """The engine cannot start, because the seed says so."""


class SimJournal(Journal):
    """Writes at once: when a thread would is nothing that a seed says."""

    def __init__(self, stem: Path, max_bytes: int, faults: Faults):
        super().__init__(stem, max_bytes)
        self._faults = faults

    def put(self, group: int, block_hash: bytes, parent: bytes, data: Bytes) -> None:
        self._append(record_of(group, block_hash, parent, data))

    def _write(self, data: bytes) -> None:
        if self._faults.disk_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(data)


class SimChild:
    """As `EngineChild`, with the process in it."""

    def __init__(self, world: "World", plan: ModelPlan, options: LaunchOptions, life: int):
        self._world = world
        self._plan = plan
        self._room = options.room
        self.life = life
        """0 for the first process of its client, then 1, and so on."""
        self.faults = Faults(disk_full=world.disk_full, found=world.found)
        self.pid = world.next_pid()
        self.name = f"{plan.name}#{self.pid}"
        self.returncode: int | None = None
        self.ready = False
        self.core: EngineCore | None = None
        self.runner: SimRunner | None = None
        self._journal: SimJournal | None = None
        self.folder: Path = world.make_folder(self.pid)
        self.num_sent = 0
        self.dies_at_message: int | None = None
        self._chance = random.Random(f"{world.seed} {self.name}")
        clock = world.clock
        self._requests = Wire(clock, self._latency)
        self._outputs = Wire(clock, self._latency)
        self.end = SimClientEnd(self._requests, self._outputs, self._log)
        self._engine_end = SimEngineEnd(self._requests, self._outputs, self._on_send)
        self._goes = asyncio.Event()
        self._goes.set()
        self._arrival: asyncio.Future[None] | None = None
        self._requests.on_arrival = self._wake
        self._on_exit: Callable[[SimChild], None] | None = None
        world.children.append(self)
        world.trace.add(self.name, "starts")
        self._activity = Activity()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        self._heart = loop.create_task(self._beat())

    # What the client does with it.

    def watch(self, loop: Any, on_message: Callable[[Any], None], on_exit: Any) -> None:
        self.end.watch(lambda: loop.call_soon(on_message, self))
        self._on_exit = on_exit
        loop.call_soon(on_message, self)
        if self.returncode is not None:
            loop.call_soon(on_exit, self)

    def unwatch(self, loop: Any) -> None:
        self.end.watch(None)

    def kill(self) -> None:
        if self.returncode is None:
            self._exit(-9)

    def exit_cause(self) -> str:
        return exit_cause(self.returncode, "The engine process", None)

    def close(self) -> None:
        self.end.close()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # What befalls it.

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def stop(self) -> None:
        """SIGSTOP."""
        self._goes.clear()

    def go_on(self) -> None:
        """SIGCONT."""
        self._goes.set()

    def terminate(self) -> None:
        """SIGTERM."""
        if self.alive and self.ready:
            self._loop.stop(float("inf"))
            self._wake()
        else:
            self.kill()

    @property
    def answers(self) -> bool:
        return self.alive and self._goes.is_set()

    @property
    def num_late(self) -> int:
        """Tokens that it sent of requests after their end."""
        return self._engine_end.num_late

    # The process itself, as `pagoda.engine.processes.main.main`.

    async def _run(self) -> None:
        code = 0
        try:
            await self._serve()
        except Exception as error:  # noqa: BLE001  # the edge of the process, as in the real one
            self._check_cause(error)
            self._engine_end.send(EngineDied(describe(error), isinstance(error, CapacityError)))
            code = 1
        await asyncio.sleep(min(_LINGER_SECONDS, self._outputs.on_the_way))
        self._exit(code)

    async def _beat(self) -> None:
        """Beside the process's main thread, and like it not while it is stopped."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            await self._goes.wait()
            self._engine_end.send_from_thread(self._activity.heartbeat())

    async def _serve(self) -> None:
        await self._start()
        loop = self._loop
        in_a_row = 0
        while not loop.finished():
            patience_ms = loop.patience_ms()
            in_a_row = 0 if patience_ms else in_a_row + 1
            if in_a_row > _MOST_TURNS:
                raise RuntimeError("it takes one turn after the other and never rests")
            if patience_ms:
                await self._wait(patience_ms / 1000)
            await self._goes.wait()
            await self._compute(loop.turn)
        assert self.core is not None
        await self._compute(self.core.shutdown)

    async def _start(self) -> None:
        self._engine_end.send(EngineProgress("import"))
        fault = self._world.take_start_fault(self)
        for part in range(4):
            await asyncio.sleep(self._plan.start_seconds / 4)
            await self._goes.wait()
            if fault and part == 2:
                raise StartFaultError("the file cannot be read")
            self._engine_end.send(EngineProgress("load weights", part + 1, 4))
        limit = None if self._room is None else self._room.limit
        if limit is not None and self._plan.size > limit:
            raise CapacityError(f"It needs {self._plan.size} bytes and {limit} are left.")
        await self._compute(self._make_core)
        self._loop = EngineLoop(self.core, self._engine_end, self._activity)
        self.ready = True
        self._engine_end.send(
            EngineReady(
                max_model_len=MAX_MODEL_LEN,
                vocab_size=VOCAB,
                num_blocks=self._plan.num_blocks,
                block_size=BLOCK_SIZE,
                kv_tokens=self._plan.num_blocks * BLOCK_SIZE,
                max_num_seqs=self._plan.limits["max_num_reqs"],
                ledger=[{"kind": "memory", "name": "weights", "predicted": self._plan.size}],
            )
        )

    def _make_core(self) -> None:
        scheduler, runner = self._plan.make()
        self.runner = SimRunner(runner, self._plan, self._world.clock, self.faults)
        executor = LocalExecutor if self._plan.steps_in_flight == 1 else DeviceExecutor
        prefixes = None
        if self._plan.keeps_kv:
            stem = self._world.folder / "kept" / self._plan.name
            self._journal = SimJournal(stem, _KV_BYTES, self.faults)
            prefixes = KeptPrefixes(self._journal, scheduler.kv, self.runner)
            self._world.trace.add(self.name, f"restored {prefixes.restore()} blocks")
        self.core = EngineCore(
            scheduler,
            executor(self.runner),
            grammars=SimGrammars(self._world.clock),  # type: ignore[arg-type]  # a fake
            prefixes=prefixes,
        )

    async def _compute(self, work: Callable[[], object]) -> None:
        """Do it now; to the others it is done when its time has passed."""
        clock = self._world.clock
        clock.busy = _TURN_SECONDS
        try:
            work()
        finally:
            seconds, clock.busy = clock.busy, 0.0
        await asyncio.sleep(seconds)

    async def _wait(self, seconds: float) -> None:
        """For a message."""
        if self._requests.pending():
            return
        self._arrival = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(seconds, self._wake)
        try:
            await self._arrival
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _exit(self, code: int) -> None:
        if self.returncode is not None:
            return
        self.returncode = code
        if self._journal is not None:
            self._journal.close()
        lost = self._outputs.sender_died(self._chance.choice((0, 0, 1, 3)) if code < 0 else 0)
        self._world.trace.add(self.name, f"ends with {code}, {lost} messages lost")
        self._task.cancel()
        self._heart.cancel()
        asyncio.get_running_loop().call_later(0.001, self._tell_exit)

    def _tell_exit(self) -> None:
        if self._on_exit is not None:
            self._on_exit(self)

    def _latency(self) -> float:
        return self._chance.uniform(2e-5, 2e-4) + self._world.extra_latency

    def _on_send(self) -> None:
        self.num_sent += 1
        if self.num_sent == self.dies_at_message and self._world.may_die(self):
            asyncio.get_running_loop().call_soon(self.kill)

    def _check_cause(self, error: Exception) -> None:
        """Whether it ends for what the seed did to it, and for nothing else."""
        root = error
        while isinstance(root.__cause__, Exception):
            root = root.__cause__
        if not isinstance(root, MemoryError | StartFaultError | CapacityError):
            self._world.found.append(f"{self.name} died of {error!r} (root: {root!r})")

    def _log(self, verb: str, message: Any) -> None:
        if isinstance(message, AddRequest):
            self._world.added.add(message.req_id)
        self._world.trace.add(self.name, f"{verb} {_brief(message)}")


def _brief(message: Any) -> str:
    if isinstance(message, StepOutputs):
        told = [f"{d.req_id}+{d.token_ids}{d.finish_reason or ''}" for d in message.deltas]
        stats = message.stats
        return f"{told} running {stats.num_running} waiting {stats.num_waiting}"
    if isinstance(message, AddRequest):
        return f"add {message.req_id} of {len(message.prompt_token_ids)} tokens"
    if isinstance(message, AbortRequests):
        return f"abort {message.req_ids}"
    if isinstance(message, EngineProgress | EngineReady | EngineDied | Shutdown | Utility):
        return f"{type(message).__name__} {getattr(message, 'method', '')}".strip()
    return repr(message)
