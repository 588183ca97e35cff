"""An engine's process without a model: it counts, and does what a prompt's first token says."""

import ctypes
import os
import time
from pathlib import Path

from pagoda.core.messages import EngineReady
from pagoda.core.plan import StepPlan, StepResult
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.processes import main as process
from tests.engine.mock_runner import CountingRunner, make_scheduler

COUNTS, DIES, DIES_ONCE, SLEEPS, HOLDS_THE_LOCK = range(65, 70)
"""Letters, so that a prompt of text can say it: A, B, C, D, E."""
_FOREVER = 3600


class Runner(CountingRunner):
    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(float(os.environ.get("STUB_STEP_SECONDS", "0")))
        for row in plan.new_rows:
            if row.request is not None:
                _do(row.request.prompt_token_ids[0])
        return super().execute(plan)

    def sleep(self) -> None: ...

    def wake_up(self) -> None: ...


def _do(what: int) -> None:
    if what == DIES:
        os._exit(3)
    elif what == DIES_ONCE:
        mark = Path(os.environ["STUB_FOLDER"]) / "died"
        if not mark.exists():
            mark.touch()
            os._exit(3)
    elif what == SLEEPS:
        time.sleep(_FOREVER)
    elif what == HOLDS_THE_LOCK:
        ctypes.PyDLL(None).sleep(_FOREVER)


def start(config: object, report: object) -> tuple[EngineCore, EngineReady]:
    ready = EngineReady(
        max_model_len=64, vocab_size=257, num_blocks=64, block_size=4, kv_tokens=252, max_num_seqs=8
    )
    return EngineCore(make_scheduler(), LocalExecutor(Runner())), ready


if __name__ == "__main__":
    process.main(start)
