"""A model that counts: after token t comes t + 1, modulo the vocabulary."""

from collections import deque

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.sampling import SamplingParams
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import StartedStep
from tests.plans import shares

VOCAB = 100


class CountingRunner:
    """Keeps each request's token ids, as the real runner does; fails when told to."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.failures: list[Exception | None] = []
        """Popped at each step: what it raises, if not None."""

    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.freed:
            self.rows.pop(row, None)
        for new in plan.new_rows:
            if new.request is not None:
                self.rows[new.row] = list(new.request.prompt_token_ids)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        results = []
        for planned in shares(plan):
            tokens: list[int] = []
            if planned.samples:
                row = self.rows[planned.row]
                assert planned.num_computed_tokens + planned.num_tokens == len(row)
                tokens = [(row[-1] + 1) % VOCAB]
                row += tokens
            results.append(RequestResult(req_id=planned.req_id, token_ids=tokens))
        return StepResult(step_id=plan.step_id, results=results)


class LateExecutor:
    """Results exist only once somebody asks for them: as late as can be."""

    steps_in_flight = 2

    def __init__(self, runner: CountingRunner):
        self._runner = runner
        self._waiting: deque[StepPlan] = deque()
        self.most_waiting = 0

    def execute(self, plan: StepPlan) -> StartedStep:
        self._waiting.append(plan)
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        return StartedStep(lambda: self._runner.execute(self._waiting.popleft()))

    def shutdown(self) -> None:
        self._waiting.clear()


def make_scheduler(num_blocks: int = 64, block_size: int = 4, **limits) -> Scheduler:
    values = {"max_num_reqs": 8, "max_num_batched_tokens": 32, "max_model_len": 64, **limits}
    group = KVGroupSpec("full", (0,), num_kv_heads=1, head_dim=1, block_size=block_size)
    return Scheduler(SchedulerLimits(**values), KVCacheManager([group], num_blocks))


def request(req_id: str, prompt: list[int], **sampling) -> AddRequest:
    values = {"max_tokens": 5, "temperature": 0.0, **sampling}
    return AddRequest(req_id=req_id, prompt_token_ids=prompt, sampling=SamplingParams(**values))


def run(core: EngineCore, steps: int = 1000) -> dict[str, list[RequestDelta]]:
    """Step until idle; the deltas of each request."""
    deltas: dict[str, list[RequestDelta]] = {}
    for _ in range(steps):
        if not core.has_work():
            return deltas
        for delta in core.step():
            deltas.setdefault(delta.req_id, []).append(delta)
    raise AssertionError("the engine never became idle")


def tokens_of(deltas: list[RequestDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]
