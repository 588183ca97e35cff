"""Where a step's plan is computed: behind a future, so that runners may be many and elsewhere."""

from concurrent.futures import Future
from typing import Protocol

from pagoda.core.plan import StepPlan, StepResult


class Runner(Protocol):
    """What an executor needs of `runtime.runner.ModelRunner`."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class Executor(Protocol):
    def execute(self, plan: StepPlan) -> Future[StepResult]:
        """Start the step; the future holds its result or the exception that ended it."""

    def check(self) -> None:
        """Raise why, if a runner is gone; asked while nothing runs."""

    def shutdown(self) -> None:
        """Let go of the runners; no step is running any more."""


class LocalExecutor:
    """One runner in this process and on this thread: the future comes back finished.

    A thread of its own would cost two switches per step (about 50 us each under the GIL) and
    win nothing while the engine has one step in flight.
    """

    def __init__(self, runner: Runner):
        self.runner: Runner | None = runner

    def execute(self, plan: StepPlan) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        try:
            if self.runner is None:
                raise RuntimeError("The executor was shut down.")
            future.set_result(self.runner.execute(plan))
        except Exception as error:  # noqa: BLE001  # the step's edge: EngineCore replies with it
            future.set_exception(error)
        return future

    def check(self) -> None:
        """It is in this process."""

    def shutdown(self) -> None:
        self.runner = None
