"""Machines that execute plans in simulated time."""

import random

from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.step_time import StepCost, size_of
from tests.plans import shares

from .fake_runner import add_request, make_scheduler, planned_tokens

MACHINES = {
    "laptop": StepCost(per_token=2.6e-4, base=1.9e-3, per_pair=6e-8),
    "slow": StepCost(per_token=4e-2, base=1e-2, per_pair=1e-6),
    "gpu": StepCost(per_token=2e-5, base=5e-3, per_pair=1e-9),
}


class Machine:
    """Executes plans in simulated time: what a step takes follows from its cost."""

    def __init__(self, cost: StepCost, noise: float = 0.0, **limits: object):
        values = {"max_num_reqs": 16, "max_num_batched_tokens": 512, "max_model_len": 8192}
        self.scheduler, _ = make_scheduler(
            num_blocks=4096, block_size=16, prefix_caching=False, **{**values, **limits}
        )
        self.cost = cost
        self.noise = noise
        self.chance = random.Random(1)

    def step(self) -> tuple[StepPlan, float]:
        plan = self.scheduler.schedule()
        seconds = self.cost.seconds(size_of(plan)) * self.chance.lognormvariate(0, self.noise)
        results = [
            RequestResult(req_id=planned.req_id, token_ids=[1] if planned.samples else [])
            for planned in shares(plan)
        ]
        self.scheduler.commit(plan, StepResult(step_id=plan.step_id, results=results), seconds)
        return plan, seconds

    def add(self, name: str, length: int, **fields: object) -> None:
        prompt = [(length * i + i * i // 3) % 24 for i in range(length)]
        add_request(self.scheduler, name, prompt, **{"max_tokens": 3000, **fields})

    def start_streams(self, count: int) -> list[float]:
        """Seconds of each of their steps, once they all run."""
        for index in range(count):
            self.add(f"stream{index}", 30 + index)
        seconds = [self.step()[1] for _ in range(100)]
        return seconds[20:]

    def read_prompt(self, length: int) -> tuple[list[int], list[float]]:
        """Tokens and seconds of each step until the prompt is read."""
        self.add("long", length, max_tokens=1)
        tokens, seconds = [], []
        while sum(tokens) < length:
            plan, elapsed = self.step()
            tokens.append(planned_tokens(plan).get("long", 0))
            seconds.append(elapsed)
        return tokens, seconds
