"""Where a step's plan is computed: behind a future, so that runners may be many and elsewhere."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pagoda.core.plan import StepPlan, StepResult


class Runner(Protocol):
    """What an executor needs of `runtime.runner.ModelRunner`."""

    def execute(self, plan: StepPlan) -> StepResult: ...

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]: ...

    def sleep(self) -> None: ...

    def wake_up(self) -> None: ...


class Executor(Protocol):
    steps_in_flight: int
    """Plans that it is to have at most before the result of the first of them is asked for: 1
    where futures come back finished, 2 where a plan is made while the one before it runs."""

    def execute(self, plan: StepPlan) -> Future[StepResult]:
        """Start the step; the future holds its result or the exception that ended it."""

    def sleep(self) -> None:
        """Give back what memory can be; no request is there, and no step until `wake_up`."""

    def wake_up(self) -> None: ...

    def check(self) -> None:
        """Raise why, if a runner is gone; asked while nothing runs."""

    def shutdown(self) -> None:
        """Let go of the runners; no step is running any more."""


class LocalExecutor:
    """One runner in this process and on this thread: the future comes back finished.

    A thread of its own would cost two switches per step (about 50 us each under the GIL) and
    win nothing while the engine has one step in flight.
    """

    steps_in_flight = 1

    def __init__(self, runner: Runner):
        self.runner: Runner | None = runner

    def execute(self, plan: StepPlan) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        try:
            future.set_result(self._there().execute(plan))
        except Exception as error:  # noqa: BLE001  # the step's edge: EngineCore replies with it
            future.set_exception(error)
        return future

    def sleep(self) -> None:
        self._there().sleep()

    def wake_up(self) -> None:
        self._there().wake_up()

    def check(self) -> None:
        """It is in this process."""

    def shutdown(self) -> None:
        self.runner = None

    def _there(self) -> Runner:
        if self.runner is None:
            raise RuntimeError("The executor was shut down.")
        return self.runner


class DeviceExecutor(LocalExecutor):
    """One runner in this process, whose device computes beside this thread."""

    steps_in_flight = 2

    def execute(self, plan: StepPlan) -> Future[StepResult]:
        try:
            return Awaited(self._there().launch(plan))
        except Exception as error:  # noqa: BLE001  # as above
            future: Future[StepResult] = Future()
            future.set_exception(error)
            return future


class Awaited(Future[StepResult]):
    """Ends when it is first asked for, on the thread that asks: nobody else watches the device."""

    def __init__(self, wait: Callable[[], StepResult]):
        super().__init__()
        self._wait = wait

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            try:
                self.set_result(self._wait())
            except Exception as error:  # noqa: BLE001  # as above
                self.set_exception(error)
        return super().exception(timeout)

    def result(self, timeout: float | None = None) -> StepResult:
        self.exception()
        return super().result(timeout)
