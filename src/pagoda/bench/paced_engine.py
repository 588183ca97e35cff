"""An engine process that computes nothing: replies repeat their prompts, at a fixed pace.

What serving costs apart from the model shows beside it; scheduler and transport are the real ones.
"""

import time
from collections.abc import Callable

from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.messages import EngineMessage, EngineReady
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.processes.main import main

_MAX_LENGTH, _NUM_BLOCKS, _BLOCK_SIZE = 8192, 65536, 16
_MAX_REQS = 256


class PacedRunner:
    """A step ends `seconds` after the one before it, or after its own start if nothing ran."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._due = 0.0
        self._prompts: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for new in plan.new_rows:
            if new.request is not None:
                self._prompts[new.row] = new.request.prompt_token_ids
        now = time.perf_counter()
        # After a pause, or a delay that cannot be caught up, the beat begins anew.
        self._due = max(self._due + self._seconds, now)
        time.sleep(self._due - now)
        results = []
        ends = (plan.starts + plan.lens).tolist()
        for req_id, row, end in zip(plan.req_ids, plan.rows.tolist(), ends, strict=True):
            prompt = self._prompts[row]
            tokens = [] if row in plan.unsampled else [prompt[end % len(prompt)]]
            results.append(RequestResult(req_id=req_id, token_ids=tokens))
        return StepResult(step_id=plan.step_id, results=results)


def start_paced_engine(
    config: EngineConfig, report: Callable[[EngineMessage], None]
) -> tuple[EngineCore, EngineReady]:
    """Steps of `--max-step-ms` milliseconds."""
    seconds = float(config.scheduler.max_step_ms) / 1000
    limits = SchedulerLimits(_MAX_REQS, _MAX_LENGTH, _MAX_LENGTH)
    group = KVGroupSpec("full", (0,), num_kv_heads=1, head_dim=1, block_size=_BLOCK_SIZE)
    scheduler = Scheduler(limits, KVCacheManager([group], _NUM_BLOCKS))
    ready = EngineReady(
        max_model_len=_MAX_LENGTH,
        vocab_size=1 << 30,
        num_blocks=_NUM_BLOCKS,
        block_size=_BLOCK_SIZE,
        kv_tokens=_NUM_BLOCKS * _BLOCK_SIZE,
        max_num_seqs=_MAX_REQS,
    )
    runner = PacedRunner(seconds)
    executor = LocalExecutor(runner)  # type: ignore[arg-type]  # it neither sleeps nor runs ahead
    return EngineCore(scheduler, executor), ready


if __name__ == "__main__":
    main(start_paced_engine)
