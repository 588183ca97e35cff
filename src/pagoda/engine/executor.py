"""Where a step's plan is computed: out of sight, so that runners may be many and elsewhere."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from pagoda.core.plan import StepPlan, StepResult


class Runner(Protocol):
    """What an executor needs of `runtime.runner.ModelRunner`."""

    def execute(self, plan: StepPlan) -> StepResult: ...

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]: ...

    def sleep(self) -> None: ...

    def wake_up(self) -> None: ...

    def load_adapter(
        self, slot: int, identity: str, parts: Sequence[tuple[str, float]]
    ) -> None: ...


class StartedStep:
    """A step that ends when it is first waited for, on the thread that waits: nobody else watches
    the device.

    A `concurrent.futures.Future` does the same with locks, which took a fifth of what a step of one
    request spends outside kernels.
    """

    __slots__ = ("_wait", "ended", "error", "result")

    def __init__(self, wait: Callable[[], StepResult]):
        self._wait: Callable[[], StepResult] | None = wait
        self.ended = 0.0
        """As time.perf_counter() has it."""
        self.result: StepResult
        """Once it has ended without an error."""
        self.error: Exception | None = None
        """What ended it."""

    def wait(self) -> Self:
        """The step itself, ended."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            try:
                self.result = wait()
            except Exception as error:  # noqa: BLE001  # the step's edge: EngineCore replies with it
                self.error = error
            self.ended = time.perf_counter()
        return self


class Executor(Protocol):
    steps_in_flight: int
    """Plans that it is to have at most before the first of them is waited for: 1 where steps come
    back ended, 2 where a plan is made while the one before it runs."""

    def execute(self, plan: StepPlan) -> StartedStep:
        """Start a step; what ends it with an error is told by the step."""

    def sleep(self) -> None:
        """Give back what memory can be; no request is there, and no step until `wake_up`."""

    def wake_up(self) -> None: ...

    def load_adapter(self, slot: int, identity: str, parts: Sequence[tuple[str, float]]) -> None:
        """Fill a slot with the sum of adapters: their paths, and what each is multiplied with. No
        request that runs has what the slot held."""

    def check(self) -> None:
        """Raise why, if a runner is gone; asked while nothing runs."""

    def shutdown(self) -> None:
        """Let go of the runners; no step is running any more."""


class LocalExecutor:
    """One runner in this process and on this thread: the step comes back ended.

    A thread of its own would cost two switches per step (about 50 us each under the GIL) and
    win nothing while the engine has one step in flight.
    """

    steps_in_flight = 1

    def __init__(self, runner: Runner):
        self._runner: Runner | None = runner

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("The executor was shut down.")
        return self._runner

    def execute(self, plan: StepPlan) -> StartedStep:
        return StartedStep(lambda: self.runner.execute(plan)).wait()

    def sleep(self) -> None:
        self.runner.sleep()

    def wake_up(self) -> None:
        self.runner.wake_up()

    def load_adapter(self, slot: int, identity: str, parts: Sequence[tuple[str, float]]) -> None:
        self.runner.load_adapter(slot, identity, parts)

    def check(self) -> None:
        """It is in this process."""

    def shutdown(self) -> None:
        self._runner = None


class DeviceExecutor(LocalExecutor):
    """One runner in this process, whose device computes beside this thread."""

    steps_in_flight = 2

    def execute(self, plan: StepPlan) -> StartedStep:
        try:
            return StartedStep(self.runner.launch(plan))
        except Exception as error:  # noqa: BLE001  # as in `StartedStep.wait`
            failed = StartedStep(_raising(error))
            return failed.wait()


def _raising(error: Exception) -> Callable[[], StepResult]:
    def wait() -> StepResult:
        raise error

    return wait
