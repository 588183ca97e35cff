"""The engine's loop body: messages in, one step, deltas out. Knows no transport and no torch."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from pagoda.base.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    RequestError,
)
from pagoda.base.log import get_logger
from pagoda.core.grammar import Grammars
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    ClientMessage,
    Deltas,
    EngineStats,
    RequestDelta,
    Shutdown,
    Utility,
    UtilityResult,
)
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.scheduler import Scheduler
from pagoda.engine.adapters import EngineAdapters
from pagoda.engine.executor import Executor, StartedStep
from pagoda.engine.kv_disk import KeptPrefixes
from pagoda.engine.kv_publisher import KVPublisher
from pagoda.engine.transfer.link import KVTransfers
from pagoda.planner.resolved import NO_ADAPTERS, ResolvedAdapters

log = get_logger(__name__)

_GRAMMAR = "grammar"
"""Why a request is held until its grammar is compiled."""
_TRANSFER = "transfer"
"""Why it is held until its blocks are here."""
# Large schemas take a second, the first one of all a few more for the vocabulary.
_COMPILE_SECONDS = 30.0
_TOO_SLOW = RequestError(
    f"The structure asked for could not be prepared within {_COMPILE_SECONDS:.0f} s; simplify it."
)
_NO_TRANSFERS = (
    "This server takes no kv_transfer_params: start it with --kv-transfer-config, such as "
    '\'{"kv_connector": "pagoda", "kv_role": "kv_both"}\'.'
)


class _Step(NamedTuple):
    plan: StepPlan
    started: StartedStep
    begun: float
    """As time.perf_counter() has it."""


class EngineCore:
    """Scheduler and executor, joined.

    With an executor of two steps in flight each result is committed one plan late: a plan is made
    while the one before it runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        grammars: Grammars | None = None,
        when_idle: Callable[[], bool] = lambda: False,
        prefixes: KeptPrefixes | None = None,
        kv_publisher: KVPublisher | None = None,
        transfers: KVTransfers | None = None,
        adapters: ResolvedAdapters = NO_ADAPTERS,
    ):
        """`when_idle` is as the method of that name; `prefixes` keeps on disk what is cached, and
        `kv_publisher` tells routers of it, and `transfers` gives it to other engines and takes it
        from them; `adapters` is what the executor has room for."""
        self.scheduler = scheduler
        self.executor = executor
        self._grammars = grammars
        self._when_idle = when_idle
        self._prefixes = prefixes
        self._kv_publisher = kv_publisher
        self._transfers = transfers
        self.adapters = EngineAdapters(
            adapters,
            lambda slot, identity, parts: executor.load_adapter(slot, identity, parts),
            lambda: scheduler.adapters,
        )
        self._compiling: dict[str, tuple[Future[None], float]] = {}
        """What held requests wait for, and until when (time.perf_counter())."""
        self._depth = executor.steps_in_flight
        self._in_flight: deque[_Step] = deque()
        self._deltas: list[RequestDelta] = []
        """Deltas of requests that ended between steps."""
        self._asleep = False
        self._faults = 0
        self._step_seconds = 0.0
        self._last_ended = 0.0
        self.stalled = False
        """The last `step` found requests, but nothing that could be scheduled."""
        self._utilities: dict[str, Callable[..., Any]] = {
            "stats": lambda: self.stats(),
            "reset_prefix_cache": lambda: scheduler.reset_prefix_cache(),
            "check_integrity": lambda: scheduler.check_integrity(),
            "load_adapter": lambda *args: self._load_adapter(*args),
            "unload_adapter": lambda identity: self.adapters.unload(identity),
            "sleep": lambda: self._sleep(),
            "wake_up": lambda: self._wake_up(),
        }

    def handle(self, message: ClientMessage) -> UtilityResult | None:
        """Take in one message; what it changes shows in the next `step`."""
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, AbortRequests):
            self._abort(message.req_ids)
        elif isinstance(message, Utility):
            result = self._call(message)
            if self._kv_publisher is not None:
                self._kv_publisher.flush()
            return result
        elif isinstance(message, Shutdown):
            raise TypeError("Shutdown belongs to the loop around EngineCore.")
        return None

    def step(self) -> Deltas:
        """Plan and start one step, commit the oldest one; what its requests gained.

        A fault of the runner ends the requests of its step. A second one in a row, or a
        scheduler that no longer adds up, raises EngineDeadError with the root cause.
        """
        begun = time.perf_counter()
        if self._compiling:
            self._release_compiled()
        if self._transfers is not None:
            self._move_blocks(self._transfers, idle=not self.scheduler.has_work())
        plan = self.scheduler.schedule()
        self.stalled = plan is None and not self._in_flight
        if self.stalled and self._transfers is not None and self.scheduler.has_work():
            self._transfers.make_room()
        if plan is not None:
            started = time.perf_counter()
            self._in_flight.append(_Step(plan, self._execute(plan), started))
        deltas = Deltas()
        if self._in_flight and (plan is None or len(self._in_flight) >= self._depth):
            deltas = self._commit(self._in_flight.popleft())
        if self._deltas:
            deltas.others[:0], self._deltas = self._deltas, []
        if self._transfers is not None:
            self._transfers.ended(deltas.others)
        if self._prefixes is not None:
            self._prefixes.write_back(False)
        if self._kv_publisher is not None:
            self._kv_publisher.flush()
        self._step_seconds += time.perf_counter() - begun
        return deltas

    def when_idle(self) -> bool:
        """With no request there: work for a while for later steps; whether more is to be done."""
        if self._asleep:
            return False
        if self._transfers is not None and self._move_blocks(self._transfers, idle=True):
            return True
        writes = self._prefixes is not None and self._prefixes.write_back(True)
        return writes or self._when_idle()

    @property
    def wake_fd(self) -> int | None:
        """Readable once there is something to do that no message tells of."""
        return None if self._transfers is None else self._transfers.wake_fd

    @property
    def awaits_others(self) -> bool:
        """Requests wait for grammars or for another engine's blocks, for a bounded time."""
        return bool(self._compiling) or (self._transfers is not None and self._transfers.is_busy)

    def has_work(self) -> bool:
        waiting = self._in_flight or self._deltas or self.awaits_others
        return bool(waiting) or self.scheduler.has_work()

    def stats(self) -> EngineStats:
        stats = self.scheduler.stats()
        stats.step_seconds = self._step_seconds
        return stats if self._transfers is None else self._transfers.count(stats)

    def shutdown(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().started.wait()
        if self._prefixes is not None:
            self._prefixes.close()
        if self._kv_publisher is not None:
            self._kv_publisher.close()
        if self._transfers is not None:
            self._transfers.close()
        self.executor.shutdown()

    def _sleep(self) -> None:
        """End all requests, forget all prefixes, and have the executor give back its memory."""
        self._abort(self.scheduler.req_ids)
        while self._in_flight:
            self._deltas += self._commit(self._in_flight.popleft())
        if self._transfers is not None:
            self._transfers.forget()
        self.scheduler.reset_prefix_cache()
        self._asleep = True
        self.executor.sleep()

    def _wake_up(self) -> None:
        if self._asleep:
            self.executor.wake_up()
            self._asleep = False

    def _load_adapter(self, path: str, identity: str | None = None) -> dict[str, Any]:
        """As `EngineAdapters.load`, for a message."""
        if self._asleep:
            raise EngineAsleepError
        loaded: dict[str, Any] = msgspec.to_builtins(self.adapters.load(path, identity))
        return loaded

    def _execute(self, plan: StepPlan) -> StartedStep:
        try:
            return self.executor.execute(plan)
        except (EngineDeadError, CapacityError):
            raise  # its runners are gone, and with them the requests of all steps
        except BaseException as error:
            # An interrupt in mid-step: what the step computed is unknown.
            self._deltas += self._fail(plan, error)
            raise

    def _abort(self, req_ids: list[str]) -> None:
        self._deltas += self.scheduler.abort(req_ids)
        if self._transfers is not None:
            self._transfers.drop(req_ids)

    def _move_blocks(self, transfers: KVTransfers, *, idle: bool) -> bool:
        return transfers.work(lambda req_id: self.scheduler.release(req_id, _TRANSFER), idle=idle)

    def _add(self, req: AddRequest) -> None:
        if self._asleep:
            self._deltas.append(
                RequestDelta(
                    req_id=req.req_id, finish_reason="error", error=str(EngineAsleepError())
                )
            )
            return
        try:
            if req.grammar is not None and self._grammars is None:
                raise RequestError("This engine takes no grammars.", "structured_outputs")
            if req.kv_transfer is not None:
                if self._transfers is None:
                    raise RequestError(_NO_TRANSFERS, "kv_transfer_params")
                self._transfers.check(req)
            self.adapters.admit(req)
            self.scheduler.add(req)
        except RequestError as error:
            self._refuse(req.req_id, str(error))
            return
        if req.grammar is not None and self._grammars is not None:
            self.scheduler.hold(req.req_id, _GRAMMAR)
            deadline = time.perf_counter() + _COMPILE_SECONDS
            self._compiling[req.req_id] = (self._grammars.compile(req.grammar), deadline)
        if self._transfers is not None and self._transfers.begin(req):
            self.scheduler.hold(req.req_id, _TRANSFER)

    def _release_compiled(self) -> None:
        """Let requests run whose grammars are ready, and end those whose grammars are wrong."""
        now = time.perf_counter()
        for req_id, (future, deadline) in list(self._compiling.items()):
            if not future.done() and now < deadline:
                continue
            del self._compiling[req_id]
            error = future.exception() if future.done() else _TOO_SLOW
            if error is None:
                self.scheduler.release(req_id, _GRAMMAR)
            elif self.scheduler.abort([req_id]):
                if not isinstance(error, RequestError):
                    log.error("A grammar could not be compiled.", exc_info=error)
                self._refuse(req_id, describe(error))

    def _refuse(self, req_id: str, reason: str) -> None:
        self._deltas.append(
            RequestDelta(req_id=req_id, finish_reason="error", error=reason, bad_request=True)
        )

    def _call(self, message: Utility) -> UtilityResult:
        method = self._utilities.get(message.method)
        if method is None:
            known = ", ".join(sorted(self._utilities))
            error = f"The engine has no method {message.method!r}; it has {known}."
            return UtilityResult(message.call_id, error=error)
        try:
            return UtilityResult(message.call_id, result=method(*message.args))
        except EngineAsleepError as error:
            return UtilityResult(message.call_id, error=describe(error))
        except EngineDeadError:
            raise
        except (CheckpointError, ConfigError, RequestError) as error:
            return UtilityResult(message.call_id, error=describe(error))
        except Exception as error:
            log.exception("The call of %s failed.", message.method)
            return UtilityResult(message.call_id, error=describe(error))

    def _commit(self, step: _Step) -> Deltas:
        started = step.started.wait()
        # A step in flight behind another begins when that one ends.
        seconds = started.ended - max(step.begun, self._last_ended)
        self._last_ended, error = started.ended, started.error
        if error is None:
            self._faults = 0
            deltas = self.scheduler.commit(step.plan, started.result, seconds)
            if step.plan.unsampled:
                deltas.others += self.scheduler.progress.of_prompts(step.plan)
            return deltas
        if isinstance(error, EngineDeadError | CapacityError):
            raise error  # as in `_execute`
        return self._fail(step.plan, error)

    def _fail(self, plan: StepPlan, error: BaseException) -> Deltas:
        """End the requests of a failed step with its error, and see whether the rest is sound."""
        text = describe(error)
        if isinstance(error, Exception) and not isinstance(error, RequestError):
            self._faults += 1
            log.error(
                "Step %d failed and ends its %d requests.",
                plan.step_id, len(plan.req_ids), exc_info=error,
            )  # fmt: skip
            if self._faults > 1:
                raise EngineDeadError(f"Two steps in a row failed: {text}") from error
        results = [RequestResult(req_id=req_id, error=text) for req_id in plan.req_ids]
        try:
            nothing = StepResult(step_id=plan.step_id, results=results, copied=False)
            deltas = self.scheduler.commit(plan, nothing)
            self.scheduler.check_integrity()
        except Exception as broken:
            log.exception("The scheduler does not add up.")
            raise EngineDeadError(
                f"A failed step left the scheduler inconsistent ({describe(broken)}): {text}"
            ) from error
        return deltas


def describe(error: BaseException) -> str:
    """One line for a person: the sentence of an error raised on purpose, else type and text."""
    text = " ".join(str(error).split())
    if type(error).__module__.startswith("pagoda."):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
