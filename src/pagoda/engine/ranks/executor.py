"""The other ranks' processes, from rank 0's side: start, watch, end, clean up."""

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.errors import CapacityError, ConfigError, EngineDeadError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger, log_settings
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.config.kv_transfer import is_local
from pagoda.core.plan import StepPlan
from pagoda.core.ranks import RankCall
from pagoda.engine.core import describe
from pagoda.engine.executor import LocalExecutor, Runner, StartedStep
from pagoda.engine.kv_disk import BlockStore
from pagoda.engine.kv_journal import Bytes
from pagoda.engine.ranks.link import (
    FolderPlace,
    RankDevice,
    RankDied,
    RankDone,
    RankLaunch,
    RankMeasure,
    RankMeasured,
    RankMeet,
    RankPool,
    RankReady,
    RankSetup,
    RankUp,
)
from pagoda.engine.ranks.nodes import NodeStarter, model_identity
from pagoda.engine.ranks.starter import LocalStarter, RankStarter, StartedRank
from pagoda.engine.start.measured import Room
from pagoda.engine.start.phases import Phases
from pagoda.planner.parallel import rank_spec
from pagoda.planner.stages import check_stages
from pagoda.weights.files import ModelFiles

if TYPE_CHECKING:
    import torch

    from pagoda.runtime.meeting import Meeting
    from pagoda.runtime.rank_group import RankGroup
    from pagoda.runtime.ranks import LeadingRunner

log = get_logger(__name__)

Result = TypeVar("Result")

_POLL_MS = 100
_WATCH_SECONDS = 0.5
# The engine's own thread notices a rank's end at its next exchange over gloo or its next idle look;
# NCCL may let it wait for ever.
_NOTICE_SECONDS = 5.0
# Of what rank 0 has; less is said.
_MUCH_LESS = 0.8
# After one rank is lost, so long may the others and the system take to say which was the first.
_VERDICT_SECONDS = 2.0


class Ranks:
    """Starts ranks 1 and up at once; what they say is read by one thread only."""

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        *,
        starter: RankStarter,
        give_up: Callable[[str], None] | None = None,
    ):
        """`give_up` ends this process with a cause, from any thread, when a rank is gone and the
        engine does not notice."""
        self.size = config.parallel.num_ranks
        self._parallel = config.parallel
        self._starter, self._link = starter, starter.link
        self._give_up = give_up
        self._processes: dict[int, StartedRank] = {}
        self._finalizer = weakref.finalize(self, _clean_up, self._processes, starter)
        self._up: dict[int, RankUp] = {}
        self._ready: set[int] = set()
        self._measured: dict[int, Room] = {}
        self._done: dict[int, RankDone] = {}
        self._died: dict[int, RankDied] = {}
        self._closed = threading.Event()
        self._over: EngineDeadError | CapacityError | None = None
        level, form = log_settings()
        for rank in range(1, self.size):
            launch = RankLaunch(
                config, rank, str(model_path), self._link.place, rank,
                log_level=level, log_format=form,
            )  # fmt: skip
            self._processes[rank] = starter.start(launch)
        threading.Thread(
            target=_watch, args=(self._processes, self._closed, weakref.ref(self)), daemon=True
        ).start()

    @cached_property
    def group(self) -> "RankGroup":
        """Rank 0's place among them; brings torch."""
        from pagoda.runtime.rank_group import RankGroup

        if is_local(self._link.address):
            env.set_default("NCCL_SOCKET_IFNAME", "lo")
        parallel = self._parallel
        return RankGroup(0, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)

    def share(
        self, config: EngineConfig, facts: DeviceFacts, num_devices: int, first_gpu: int = 0
    ) -> tuple[EngineConfig, DeviceFacts]:
        """What each rank may count on, of rank 0's facts: ranks on a CPU share it, and each GPU
        rank has its own of `num_devices`, from `first_gpu` on. ConfigError where they are too
        few. Of several machines the one with the least memory decides."""
        self._link.send(RankDevice(facts.device, first_gpu))
        beside, on_cpu = self._starter.num_beside, facts.device == "cpu"
        if on_cpu and beside > 1:
            log.warning(
                "%s on a CPU: %d processes share its cores and memory. That is for tests; one "
                "process is faster.", config.parallel.sizes, beside,
            )  # fmt: skip
        needed = self._starter.num_devices
        if not on_cpu and num_devices < first_gpu + needed:
            wanted = needed * config.parallel.data_parallel_size
            engines = config.parallel.data_parallel_size
            each = " on each machine" if beside < self.size else ""
            times = f" with --data-parallel-size {engines}" if engines > 1 else ""
            raise ConfigError(
                f"{config.parallel.sizes}{times} needs {wanted} GPUs{each} and torch finds "
                f"{num_devices}; lower it, or check CUDA_VISIBLE_DEVICES."
            )
        if not on_cpu or beside < self.size:
            self._wait(lambda: len(self._up) == self.size - 1)
            facts = _with_least(facts, self._up.values())
        return self._starter.part(config, facts) if on_cpu else (config, facts)

    def load(self, setup: RankSetup) -> None:
        """Let them load their shares, while rank 0 loads its own."""
        self._link.send(setup)

    def meet(self, device: "torch.device") -> None:
        """Wait until all have loaded, and connect them."""
        self._wait(lambda: len(self._ready) == self.size - 1)
        with self.in_step():
            self.group.connect(device, self._meeting())

    def _meeting(self) -> "Meeting":
        """A place to meet, of which the others hear."""
        from pagoda.runtime.meeting import meet_at, meet_in

        place, beside = self._link.place, self._starter.num_beside
        if isinstance(place, FolderPlace):
            meeting = meet_in(Path(place.folder), self.size)
        else:
            meeting = meet_at(self._link.address, beside)
        self._link.send(RankMeet(beside, meeting.port))
        return meeting

    def measure(self, own: Callable[[], Room], computes: bool) -> list[Room]:
        """The room of all ranks, this one's by `own`; a step they compute together."""
        self._link.send(RankMeasure(computes))
        found = own()
        self._wait(lambda: len(self._measured) == self.size - 1)
        return [found, *self._measured.values()]

    def runner(self, pool: RankPool, *args: Any, **options: Any) -> "LeadingRunner":
        """Rank 0's, once all ranks have theirs; takes what `ModelRunner` takes."""
        from pagoda.runtime.ranks import LeadingRunner
        from pagoda.runtime.stages import StageLeader

        kind = LeadingRunner if self.group.num_stages == 1 else StageLeader
        make = partial(kind, *args, group=self.group, tell=self._link.send, **options)
        return self.call(pool, make)

    def call(self, call: RankCall | RankPool, own: Callable[[], Result]) -> Result:
        """What `own` gives; meanwhile all other ranks do something, and are waited for.
        CapacityError for one that could not: these calls take memory, or time and nothing else."""
        self.check()
        self._done.clear()
        self._link.send(call)
        try:
            result = own()
        finally:
            self._wait(lambda: len(self._done) == self.size - 1)
        for rank, done in self._done.items():
            if done.error:
                raise CapacityError(f"Rank {rank}: {done.error}")
        return result

    def check(self) -> None:
        """Raise why, if a rank is gone: CapacityError where its memory ran out, else
        EngineDeadError."""
        if self._over is None and all(p.poll() is None for p in self._processes.values()):
            return
        raise self._verdict()

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around what all ranks do together: an error in it leaves them at different places and
        ends them; EngineDeadError with the cause, which may be another rank's."""
        from pagoda.runtime.meeting import PeerLostError  # brings torch

        try:
            self.check()
            yield
        except PeerLostError as error:
            raise self._verdict(error) from error
        except (EngineDeadError, CapacityError):
            raise
        except Exception as error:
            self._over = EngineDeadError(f"A step failed on rank 0: {describe(error)}")
            self.close()
            raise self._over from error

    def together(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, which all ranks do together."""
        with self.in_step():
            return work()

    def unblock(self, cause: str) -> None:
        """End the engine's thread from another one, for it waits for a rank that is gone."""
        if self._give_up is not None:
            self._give_up(cause)
        elif "group" in self.__dict__:
            self.group.abort()

    def serves(self) -> None:
        """All is loaded and warm: let the other machines' logs say so."""
        self._starter.serves()

    def close(self) -> None:
        """End the processes and remove their sockets. Harmless when repeated."""
        self._over = self._over or EngineDeadError("The engine was stopped.")
        self._closed.set()
        self._finalizer()

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            self._receive(_POLL_MS)
            self.check()

    def _receive(self, timeout_ms: int) -> bool:
        message = self._link.receive(timeout_ms)
        if isinstance(message, RankUp):
            self._up[message.rank] = message
        elif isinstance(message, RankReady):
            self._ready.add(message.rank)
        elif isinstance(message, RankMeasured):
            self._measured[message.rank] = Room(message.peak, message.usable)
        elif isinstance(message, RankDone):
            self._done[message.rank] = message
        elif isinstance(message, RankDied):
            self._died[message.rank] = message
        return message is not None

    def _verdict(self, error: Exception | None = None) -> EngineDeadError | CapacityError:
        """Which rank ended first, and why; the rest ended because of it. Ends all of them."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while self._over is None:
            while self._receive(0):
                pass
            self._over = self._first_cause()
            if self._over is None and time.monotonic() >= deadline:
                self._over = self._any_cause(error)
            elif self._over is None:
                self._receive(_POLL_MS)
        self.close()
        return self._over

    def _first_cause(self) -> EngineDeadError | CapacityError | None:
        for rank, process in self._processes.items():
            died = self._died.get(rank)
            if died is not None and not died.lost_peer:
                kind = CapacityError if died.out_of_memory else EngineDeadError
                return kind(f"Rank {rank}: {died.cause}")
            # A process that says why ends with 1, and its words may still be under way.
            code = process.poll()
            if died is None and code is not None and code != 1:
                return EngineDeadError(process.cause())
        return None

    def _any_cause(self, error: Exception | None) -> EngineDeadError:
        for rank, process in self._processes.items():
            code = process.poll()
            if rank not in self._died and code is not None:
                return EngineDeadError(process.cause())
        for rank, died in self._died.items():
            return EngineDeadError(f"Rank {rank}: {died.cause}")
        return EngineDeadError(f"The ranks lost each other: {error}")


class RanksBlocks:
    """Blocks of the KV cache, a part of each on every rank. A fault in a copy ends all ranks: they
    no longer are at the same place."""

    def __init__(self, store: BlockStore, ranks: Ranks):
        self._store, self._ranks = store, ranks

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one of the group's blocks on all ranks]."""
        return self._ranks.together(lambda: self._store.read_blocks(group, blocks))

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None:
        """Put back what `read_blocks` gave."""
        self._ranks.together(lambda: self._store.write_blocks(group, blocks, data))


class RanksExecutor(LocalExecutor):
    """The runner of rank 0 in this process, which the other ranks follow. A step that fails ends
    them all and raises, now or once it is waited for: they no longer are at the same place."""

    def __init__(self, runner: Runner, ranks: Ranks, *, steps_in_flight: int):
        super().__init__(runner)
        self._ranks = ranks
        self.steps_in_flight = steps_in_flight

    def execute(self, plan: StepPlan) -> StartedStep:
        with self._ranks.in_step():
            if self.steps_in_flight > 1:
                return StartedStep(partial(self._ranks.together, self.runner.launch(plan)))
            step = super().execute(plan)
            if step.error is not None:
                raise step.error
        return step

    def sleep(self) -> None:
        self._ranks.call(RankCall("sleep"), super().sleep)

    def wake_up(self) -> None:
        self._ranks.call(RankCall("wake_up"), super().wake_up)

    def load_adapter(self, slot: int, identity: str, parts: Sequence[tuple[str, float]]) -> None:
        call = RankCall("load_adapter", slot, identity, list(parts))
        self._ranks.call(
            call, lambda: super(RanksExecutor, self).load_adapter(slot, identity, parts)
        )

    def check(self) -> None:
        self._ranks.check()

    def shutdown(self) -> None:
        super().shutdown()
        self._ranks.close()


def _with_least(facts: DeviceFacts, others: Collection[RankUp]) -> DeviceFacts:
    """Rank 0's with the least memory of all; says whose that is, where it is much less."""
    least = min(others, key=lambda up: (up.free_memory, up.rank))
    if least.free_memory < _MUCH_LESS * facts.free_memory:
        log.warning(
            "Rank %d has %s of memory free and rank 0 %s: all are planned for the least.",
            least.rank, format_bytes(least.free_memory), format_bytes(facts.free_memory),
        )  # fmt: skip
    return replace(
        facts,
        free_memory=min(facts.free_memory, least.free_memory),
        total_memory=min(facts.total_memory, *(up.total_memory for up in others)),
    )


def start_ranks(
    config: EngineConfig,
    spec: ModelSpec,
    files: ModelFiles,
    phases: Phases,
    give_up: Callable[[str], None] | None,
) -> Ranks | None:
    """The other ranks of a model that is split; None for one on a single device. ConfigError for a
    model that cannot be split so."""
    if config.parallel.num_ranks == 1:
        return None
    rank_spec(spec, config.parallel.tensor_parallel_size)
    check_stages(config, spec)
    return Ranks(config, files.path, starter=_starter(config, files, phases), give_up=give_up)


def _starter(config: EngineConfig, files: ModelFiles, phases: Phases) -> RankStarter:
    if config.parallel.distributed_executor_backend == "ray":
        with phases.timed("wait for Ray"):
            from pagoda.engine.ranks.ray_ranks import RayStarter  # brings Ray

            return RayStarter(config)
    if config.nodes.nnodes == 1:
        return LocalStarter(config.parallel.num_ranks)
    starter = NodeStarter(config, model_identity(config, files))
    with phases.timed("wait for nodes"):
        starter.wait(phases.awaits)
    return starter


def _watch(
    processes: Mapping[int, StartedRank],
    closed: threading.Event,
    owner: "weakref.ref[Ranks]",
) -> None:
    """Wait for a process to end before its time, then for the engine to see it."""
    while not closed.wait(_WATCH_SECONDS):
        if owner() is not None and all(p.poll() is None for p in processes.values()):
            continue
        ranks = None if closed.wait(_NOTICE_SECONDS) else owner()
        if ranks is not None:
            codes = {rank: process.poll() for rank, process in processes.items()}
            # Who ends with 1 had a reason to give, which may be the loss of another.
            rank = max(codes, key=lambda rank: (codes[rank] is not None, codes[rank] != 1))
            ranks.unblock(processes[rank].cause())
        return


def _clean_up(processes: Mapping[int, StartedRank], starter: RankStarter) -> None:
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.wait()
    starter.close()
