"""Models of known outputs, as the engine process runs them: in simulated time, with faults."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagoda.base.errors import RequestError
from pagoda.core.messages import AddRequest, MediaItem
from pagoda.core.plan import StepPlan, StepResult
from pagoda.core.scheduler import Scheduler
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from pagoda.core.speculation.suffix import SuffixProposer
from pagoda.core.step_time import StepCost, size_of
from tests.plans import Planned
from tests.simulation.clock import Clock
from tests.unit.core.fake_runner import Digests, FakeRunner, expected_output, make_scheduler

MAX_MODEL_LEN = 96
BLOCK_SIZE = 4
_DIGEST_BYTES = 8


@dataclass(frozen=True)
class ModelPlan:
    """What a seed says of a model."""

    name: str
    size: int
    """Bytes of the machine's memory that it takes."""
    num_blocks: int
    windows: tuple[int | None, ...]
    num_states: int
    limits: dict[str, Any]
    """Of the scheduler."""
    prefix_caching: bool
    steps_in_flight: int
    cost: StepCost
    start_seconds: float
    keeps_kv: bool
    """On disk, from one life to the next."""

    def make(self) -> tuple[Scheduler, FakeRunner]:
        guesses = self.steps_in_flight == 1 and not self.num_states
        return make_scheduler(
            speculator=Speculator(SuffixProposer(512), SpeculationLimits(4)) if guesses else None,
            num_blocks=self.num_blocks,
            windows=self.windows,
            block_size=BLOCK_SIZE,
            prefix_caching=self.prefix_caching,
            num_states=self.num_states,
            max_model_len=MAX_MODEL_LEN,
            **self.limits,
        )


@dataclass
class Faults:
    """What goes wrong next in an engine process."""

    failing_steps: int = 0
    """So many steps end with a MemoryError."""
    slow_step: float = 0.0
    """Seconds that the next step takes longer."""
    disk_full: bool = False
    found: list[str] = field(default_factory=list)
    """What must never be."""


class SimRunner(FakeRunner):
    """A step takes its time on the process's clock, or on that of a device beside it."""

    def __init__(self, runner: FakeRunner, plan: ModelPlan, clock: Clock, faults: Faults):
        super().__init__(runner.groups)
        self._plan, self._clock, self._faults = plan, clock, faults
        self._device_free = 0.0
        self._doomed: set[str] = set()
        """Requests of failed steps: they end, and what is launched already stands on nothing."""

    def execute(self, plan: StepPlan) -> StepResult:
        self._clock.busy += self._seconds(plan)
        return self._outcome(plan)()

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        begins = max(self._clock.now(), self._device_free)
        done = self._device_free = begins + self._seconds(plan)
        outcome = self._outcome(plan)

        def wait() -> StepResult:
            self._clock.busy += max(0.0, done - self._clock.now())
            return outcome()

        return wait

    def sleep(self) -> None:
        self._clock.busy += 0.05
        self.kv.clear()
        self.memory.clear()

    def wake_up(self) -> None:
        self._clock.busy += 0.1

    def read_blocks(self, group: int, blocks: Sequence[int]) -> np.ndarray:
        size = self.groups[group].block_size
        rows = [
            b"".join(self.kv.get((group, block, i), bytes(_DIGEST_BYTES)) for i in range(size))
            for block in blocks
        ]
        data = np.frombuffer(b"".join(rows), np.uint8)
        return data.reshape(len(blocks), size * _DIGEST_BYTES)

    def write_blocks(self, group: int, blocks: Sequence[int], data: np.ndarray) -> None:
        for block, row in zip(blocks, data, strict=True):
            raw = row.tobytes()
            for i in range(self.groups[group].block_size):
                content = raw[i * _DIGEST_BYTES : (i + 1) * _DIGEST_BYTES]
                if any(content):
                    self._store((group, block, i), content)

    def _seconds(self, plan: StepPlan) -> float:
        seconds = self._plan.cost.seconds(size_of(plan)) + self._faults.slow_step
        self._faults.slow_step = 0.0
        return seconds

    def _outcome(self, plan: StepPlan) -> Callable[[], StepResult]:
        try:
            if not self._faults.failing_steps:
                result = super().execute(plan)
                return lambda: result
            self._faults.failing_steps -= 1
            self._take_rows(plan)
            self._doomed.update(plan.req_ids)
        except (AssertionError, KeyError, IndexError) as error:
            self._faults.found.append(f"{self._plan.name}: {error!r} in step {plan.step_id}")
            raise

        def fail() -> StepResult:
            raise MemoryError("no memory is left for this step")

        return fail

    def _take_rows(self, plan: StepPlan) -> None:
        self._doomed.difference_update(self.names[row] for row in plan.freed)
        super()._take_rows(plan)

    def _prepare(self, planned: Planned) -> bool:
        return planned.req_id not in self._doomed and super()._prepare(planned)

    def _encode(self, plan: StepPlan) -> list[str]:
        for item in plan.encode:
            try:
                pixels = np.load(item.payload)
            except FileNotFoundError:
                # Its client may have left. What is not there counts as encoded, as in the real one.
                self.broken.add(plan.encode_for)
                return [item.content_hash for item in plan.encode]
            assert (pixels == pixels_of(item.content_hash)).all(), "a picture is another one"
        return super()._encode(plan)


def pixels_of(content_hash: str) -> np.ndarray:
    return np.full((1, 2, 2, 3), int(content_hash) % 251, np.uint8)


def picture(number: int, start: int, length: int) -> MediaItem:
    return MediaItem(content_hash=str(number), start=start, length=length, payload="")


def expected(message: AddRequest) -> tuple[list[int], str | None, bytes | None]:
    """Tokens, finish reason and vector of a request that nothing happens to."""
    if message.kind == "pool":
        return [], None, Digests(message).last(message.prompt_token_ids)
    tokens = expected_output(message, MAX_MODEL_LEN)
    stopped = bool(tokens) and tokens[-1] in message.sampling.stop_token_ids
    return tokens, "stop" if stopped else "length", None


class _Compiling(Future[None]):
    def __init__(self, clock: Clock, done_at: float, error: RequestError | None):
        super().__init__()
        self._clock, self._done_at, self._error = clock, done_at, error

    def done(self) -> bool:
        return self._clock.now() >= self._done_at

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._error


class SimGrammars:
    """Every output follows them; what is compiled is how long that takes: `0.2`, or `0.2 bad`."""

    def __init__(self, clock: Clock):
        self._clock = clock

    def compile(self, grammar: str) -> Future[None]:
        seconds, *bad = grammar.split()
        error = RequestError("The grammar is no grammar.") if bad else None
        return _Compiling(self._clock, self._clock.now() + float(seconds), error)
