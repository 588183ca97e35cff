"""A scenario, played: what was found that must never be."""

import asyncio
import contextlib
import itertools
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pagoda.base.errors import PagodaError
from pagoda.config.engine import EngineConfig, SchedulerConfig
from pagoda.config.server import ServerConfig
from pagoda.engine.aside.direct import Direct
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.served import fleet as fleet_module
from pagoda.engine.served import model_entry as entry_module
from pagoda.engine.served.fleet import Fleet, FleetLimits
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.app import create_app
from pagoda.server.replies import generation
from tests.server.fakes import FakeTextSide
from tests.simulation import checks
from tests.simulation.clock import Clock, Trace, simulated_time
from tests.simulation.doors import DirectDoor, Door, HttpDoor, Outcome
from tests.simulation.process import SimChild
from tests.simulation.scenario import MEMORY, Ask, ClientPlan, Event, Scenario
from tests.virtual_time import VirtualLoop

PATIENCE = 900.0
"""Virtual seconds after the last fault within which everything has ended, and all serves again."""
_RETRY_SECONDS = 1.0
# No scenario needs as long: the simulation itself does not end.
_MOST_SECONDS = 50_000.0
_NEVER_SECONDS = 1e6
# What was sent last has arrived after so long, and the engines have nothing more to tell.
_QUIET_SECONDS = 3.0


@dataclass
class Report:
    scenario: Scenario
    found: list[str]
    """What must never be; empty where all holds."""
    digest: str
    virtual_seconds: float
    num_requests: int
    faults: Counter[str]
    tail: list[str]


def play(scenario: Scenario, keep: int | None = 60) -> Report:
    """The scenario from its beginning to its end; `keep` lines of its diary, None: all."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        clock = Clock(loop)
        trace = Trace(clock, keep)
        folder = Path(tempfile.mkdtemp(prefix="pagoda-simulated-"))
        world = World(scenario, clock, trace, folder)
        try:
            with simulated_time(clock), _machine(world):
                runner.run(world.live())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Report(
            scenario,
            world.found,
            trace.digest(),
            loop.time(),
            len(world.outcomes),
            world.faults,
            list(trace.tail),
        )


@contextlib.contextmanager
def _machine(world: "World") -> Iterator[None]:
    """What the code under test finds there instead of files and processes."""
    save = np.save

    def save_unless_full(*args: Any, **kwargs: Any) -> None:
        if world.disk_full:
            raise OSError(28, "No space left on device")
        save(*args, **kwargs)

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(fleet_module, "fetch_model", lambda model, *_: model),
            mock.patch.object(fleet_module, "load_text_side", lambda _: FakeTextSide()),
            mock.patch.object(fleet_module, "start_workers", lambda _: Direct(FakeTextSide())),
            mock.patch.object(entry_module, "tree_bytes", lambda _: 0),
            mock.patch.object(np, "save", save_unless_full),
            mock.patch.object(generation, "_serial", itertools.count()),
        ):
            yield
    finally:
        logging.disable(disabled)


@dataclass
class World:
    scenario: Scenario
    clock: Clock
    trace: Trace
    folder: Path
    found: list[str] = field(default_factory=list)
    children: list[SimChild] = field(default_factory=list)
    clients: list[EngineClient] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    disk_full: bool = False
    extra_latency: float = 0.0
    failing_starts: set[str] = field(default_factory=set)
    operations: set[asyncio.Task[None]] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    """Requests that clients sent to engines, once or again after a death."""

    @property
    def seed(self) -> int:
        return self.scenario.seed

    # What the processes ask.

    def next_pid(self) -> int:
        return 1000 + len(self.children)

    def make_folder(self, pid: int) -> Path:
        folder = self.folder / f"engine-{pid}"
        folder.mkdir()
        return folder

    def may_die(self, child: SimChild) -> bool:
        return child.alive

    def take_start_fault(self, child: SimChild) -> bool:
        model = child.name.partition("#")[0]
        if model not in self.failing_starts or not self.may_die(child):
            return False
        self.failing_starts.discard(model)
        return True

    def child_of(self, client: EngineClient) -> SimChild:
        return next(child for child in self.children if child.pid == client.pid)

    def may_fail(self, outcome: Outcome) -> bool:
        """Whether an error of a request has a cause."""
        late = outcome.ask.message.req_id.startswith("late")
        crowded = any("There is no room" in error for error in outcome.errors)
        return self.scenario.harmed or late or (crowded and len(self.scenario.models) > 1)

    # Its life.

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.found.append(f"unhandled: {context}"))
        self.fleet = self._make_fleet()
        self.app = create_app(self.fleet, ServerConfig(disable_uvicorn_access_log=True))
        self.http = HttpDoor(self.app)
        self.door: Door = self.http if self.scenario.http else DirectDoor(self.fleet)
        idle = loop.create_task(self.fleet.watch_idle())
        loop.call_at(_MOST_SECONDS, loop.stop)
        for event in self.scenario.events:
            loop.call_at(event.at, self._befall, event)
        clients = self._arrive(self.scenario.clients)
        await asyncio.sleep(max((event.at for event in self.scenario.events), default=0.0) + 1.0)
        await self._until_ended(clients)
        self._clear_up()
        await self._serve_again()
        await asyncio.sleep(_QUIET_SECONDS)
        self.found += checks.of_quiet(self)
        self.found += await checks.of_metrics(self)
        late = self._arrive(self.scenario.late)
        await asyncio.sleep(0.3 if late else 0.0)
        await self._shut_down()
        await self._until_ended(late)
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)
        await asyncio.sleep(_QUIET_SECONDS)
        self.found += checks.of_outcomes(self)
        self.found += checks.of_the_end(self)

    def _make_fleet(self) -> Fleet:
        entries = []
        for plan in self.scenario.models:
            config = EngineConfig(
                scheduler=SchedulerConfig(max_num_queued_reqs=self.scenario.queue_limit)
            )
            config = replace(config, model=replace(config.model, model=plan.name))
            now = self.clock.monotonic()
            entries.append(ModelEntry((plan.name,), config, last_used=now))
        limits = FleetLimits(memory_bytes=MEMORY, idle_seconds=self.scenario.idle_seconds)
        return Fleet(entries, limits=limits, launcher=self._launch)

    def _launch(self, config: EngineConfig, room: MemoryRoom | None) -> EngineClient:
        plan = next(plan for plan in self.scenario.models if plan.name == config.model.model)
        lives = iter(range(1 << 30))

        def spawn(_: EngineConfig, options: LaunchOptions) -> Any:
            return SimChild(self, plan, options, next(lives))

        client = EngineClient(config, LaunchOptions(room=room), spawn)
        self.clients.append(client)
        return client

    def _arrive(self, plans: tuple[ClientPlan, ...]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._be_client(plan), name=plan.name) for plan in plans]

    async def _be_client(self, plan: ClientPlan) -> None:
        await asyncio.sleep(plan.begins)
        for ask in plan.asks:
            await asyncio.sleep(ask.pause)
            await self._ask(plan.model, ask)

    async def _ask(self, model: str, ask: Ask) -> Outcome:
        outcome = Outcome(ask, model)
        self.outcomes.append(outcome)
        self.trace.add("client", f"asks {model} for {ask.message.req_id}")
        task = asyncio.create_task(self._pass(outcome), name=ask.message.req_id)
        await task
        outcome.ended = True
        self.trace.add(
            "client",
            f"{ask.message.req_id} has {outcome.tokens} {outcome.reasons} {outcome.errors}"
            f"{' and left' if outcome.left else ''}",
        )
        return outcome

    async def _pass(self, outcome: Outcome) -> None:
        await self.door(outcome)

    async def _until_ended(self, clients: list[asyncio.Task[None]]) -> None:
        if not clients:
            return
        done, waiting = await asyncio.wait(clients, timeout=PATIENCE)
        for task in clients:
            if task in waiting:
                self.found.append(f"{task.get_name()} waits for ever")
                task.cancel()
            elif task.cancelled():
                self.found.append(f"{task.get_name()} was cancelled, and nobody asked for that")
            elif task.exception() is not None:
                self.found.append(f"{task.get_name()} saw {task.exception()!r}")
        await asyncio.gather(*waiting, return_exceptions=True)

    def _clear_up(self) -> None:
        """No more faults from here on."""
        self.disk_full, self.extra_latency = False, 0.0
        self.failing_starts.clear()
        for child in self.children:
            child.dies_at_message = None
            child.faults.failing_steps = 0
            child.faults.disk_full = False

    async def _serve_again(self) -> None:
        """A fresh request of each model is served exactly."""
        for entry in self.fleet.entries:
            ask = self._fresh(entry.names[0])
            try:
                await asyncio.wait_for(self._serve(entry, ask), PATIENCE)
            except TimeoutError:
                self.found.append(f"{entry.names[0]} never serves again: {entry.cause}")

    def _fresh(self, model: str) -> Ask:
        message = self.scenario.clients[0].asks[0].message if self.scenario.clients else None
        prompt = message.prompt_token_ids if message is not None else [1, 2, 3]
        return Ask(checks.plain_request(f"fresh-{model}", prompt))

    async def _serve(self, entry: ModelEntry, ask: Ask) -> None:
        for attempt in range(1 << 30):
            if entry.asleep:
                with contextlib.suppress(PagodaError):
                    await self.fleet.wake(entry)
            message = checks.renamed(ask.message, f"{ask.message.req_id}-{attempt}")
            outcome = await self._ask(entry.names[0], replace(ask, message=message))
            if outcome.complete:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _shut_down(self) -> None:
        self.trace.add("server", "shuts down")
        ending = asyncio.create_task(self.fleet.shutdown(self.scenario.drain_seconds))
        if self.scenario.second_signal is not None:
            await asyncio.sleep(self.scenario.second_signal)
            for served in self.fleet.models():
                self.child_of(served.client).kill()
        try:
            await asyncio.wait_for(ending, PATIENCE)
        except TimeoutError:
            self.found.append("the shutdown never ends")

    # What befalls it.

    def _befall(self, event: Event) -> None:
        happened = getattr(self, f"_on_{event.kind}")(event)
        if happened is not False:
            self.trace.add("fate", f"{event.kind} {event.model} {event.value}")
            self.faults[event.kind] += 1

    def _child(self, model: str) -> SimChild | None:
        """The process of a model that runs now."""
        alive = [c for c in self.children if c.alive and c.name.startswith(f"{model}#")]
        return alive[-1] if alive else None

    def _on_delay(self, event: Event) -> None:
        self.extra_latency = event.value
        self._later(5.0, lambda: setattr(self, "extra_latency", 0.0))

    def _on_pause(self, event: Event) -> bool:
        child = self._child(event.model)
        if child is None or not child.answers:
            return False
        child.stop()
        self._later(event.value, child.go_on)
        return True

    def _on_stop(self, event: Event) -> bool:
        """For ever."""
        child = self._child(event.model)
        if child is None or not child.ready:
            return False
        child.stop()
        return True

    def _on_clock_jump(self, event: Event) -> None:
        self.clock.wall_offset += event.value

    def _on_suspend(self, event: Event) -> None:
        self.clock.loop.leap(event.value)

    def _on_slow_step(self, event: Event) -> bool:
        return self._set_fault(event, "slow_step", event.value)

    def _on_hang(self, event: Event) -> bool:
        """Its next step does not end."""
        return self._set_fault(event, "slow_step", _NEVER_SECONDS)

    def _on_failing_step(self, event: Event) -> bool:
        return self._set_fault(event, "failing_steps", 1)

    def _on_failing_steps(self, event: Event) -> bool:
        child = self._child(event.model)
        return (
            child is not None and self.may_die(child) and self._set_fault(event, "failing_steps", 2)
        )

    def _set_fault(self, event: Event, name: str, value: float) -> bool:
        child = self._child(event.model)
        if child is None:
            return False
        setattr(child.faults, name, value)
        return True

    def _on_kill(self, event: Event) -> bool:
        child = self._child(event.model)
        if child is None or not self.may_die(child):
            return False
        child.kill()
        return True

    def _on_kill_at_message(self, event: Event) -> bool:
        child = self._child(event.model)
        if child is None:
            return False
        child.dies_at_message = child.num_sent + int(event.value)
        return True

    def _on_sigterm(self, event: Event) -> bool:
        child = self._child(event.model)
        if child is None or not (child.ready or self.may_die(child)):
            return False
        child.terminate()
        return True

    def _on_start_fails(self, event: Event) -> None:
        self.failing_starts.add(event.model)

    def _on_disk_full(self, event: Event) -> None:
        self._fill_disk(True)
        self._later(event.value, lambda: self._fill_disk(False))

    def _fill_disk(self, full: bool) -> None:
        self.disk_full = full
        for child in self.children:
            child.faults.disk_full = full

    def _on_sleep(self, event: Event) -> None:
        level, wait = int(event.value) % 10, event.value >= 10
        entry = self.fleet.find(event.model)
        self._do(f"sleep {event.model}", self.fleet.sleep(entry, level, wait=wait))

    def _on_wake(self, event: Event) -> None:
        self._do(f"wake {event.model}", self.fleet.wake(self.fleet.find(event.model)))

    def _on_unload(self, event: Event) -> None:
        entry = self.fleet.find(event.model)
        self._do(f"unload {event.model}", self.fleet.unload(entry, drain_seconds=event.value))

    def _do(self, what: str, work: Any) -> None:
        async def done() -> None:
            try:
                await work
            except PagodaError as error:
                self.trace.add("server", f"{what} fails: {error}")
            else:
                self.trace.add("server", f"{what} is done")

        self.operations.add(task := asyncio.create_task(done(), name=what))
        task.add_done_callback(self.operations.discard)

    def _later(self, seconds: float, change: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, change)
