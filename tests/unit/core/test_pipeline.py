"""Several steps in flight, each of other requests: who waits for a token is in none of them."""

import random
from collections import deque

import pytest

from pagoda.core.messages import AddRequest
from pagoda.core.plan import StepPlan, StepResult
from pagoda.core.scheduler import Scheduler
from tests.plans import shares

from .fake_runner import FakeRunner, add_request, expected_output, make_scheduler

KINDS = {
    "full": {"num_blocks": 14},
    "windows": {"num_blocks": 22, "windows": (None, 6)},
    "states": {"num_blocks": 7, "num_states": 2},
    "without a prefix cache": {"num_blocks": 14, "prefix_caching": False},
}


class InFlight:
    """Commits the oldest step when as many as there are stages are under way, as the engine
    does."""

    def __init__(self, scheduler: Scheduler, runner: FakeRunner):
        self.scheduler, self.runner = scheduler, runner
        self.stages = scheduler.limits.num_stages
        self.flying: deque[tuple[StepPlan, StepResult]] = deque()
        self.known: dict[str, list[int]] = {}
        """Tokens of each request, prompt and reply."""
        self.messages: dict[str, AddRequest] = {}
        self.most = 0

    def add(self, req_id: str, prompt: list[int], **fields: object) -> None:
        add_request(self.scheduler, req_id, prompt, **fields)
        self.messages[req_id] = self.scheduler._requests[req_id].message
        self.known[req_id] = list(prompt)

    def step(self) -> None:
        plan = self.scheduler.schedule()
        if plan is not None:
            self._check(plan)
            self.flying.append((plan, self.runner.execute(plan)))
            self.most = max(self.most, len(self.flying))
        if self.flying and (plan is None or len(self.flying) >= self.stages):
            for delta in self.scheduler.commit(*self.flying.popleft()):
                assert delta.error is None
                self.known[delta.req_id] += delta.token_ids
        self.scheduler.check_integrity()

    def _check(self, plan: StepPlan) -> None:
        for planned in shares(plan):
            end = planned.num_computed_tokens + planned.num_tokens
            end -= len(planned.draft_token_ids)
            assert end <= len(self.known[planned.req_id]), "it stands on a token that is not known"
        taken = {row for other, _ in self.flying for row in other.rows.tolist()}
        assert not taken & set(plan.freed), "a step in flight still writes to the row"
        assert not taken & {new.row for new in plan.new_rows if new.request is not None}

    def settle(self) -> None:
        while self.scheduler.has_work() or self.flying:
            self.step()


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_as_ever(kind: str, stages: int):
    """With chunks, preemptions, prefixes that are shared, and clients that leave."""
    preempted = 0
    for seed in range(6):
        chance = random.Random(seed)
        scheduler, runner = make_scheduler(
            num_stages=stages, max_num_batched_tokens=16, max_num_reqs=5,
            max_model_len=64, **KINDS[kind],
        )  # fmt: skip
        flight, left = InFlight(scheduler, runner), set()
        common = [chance.randrange(1, 24) for _ in range(20)]
        for number in range(14):
            prompt = common[: chance.randrange(20)] + [number + 1]
            stop = [chance.randrange(24)] if chance.random() < 0.3 else []
            flight.add(
                f"r{number}", prompt, max_tokens=chance.randrange(1, 14), stop_token_ids=stop
            )
            for _ in range(chance.randrange(4)):
                flight.step()
            if chance.random() < 0.2:
                gone = chance.choice(list(flight.known))
                left |= {delta.req_id for delta in scheduler.abort([gone])}
        flight.settle()
        preempted += scheduler.stats().num_preemptions
        assert flight.most == stages
        for req_id, message in flight.messages.items():
            reply = flight.known[req_id][len(message.prompt_token_ids) :]
            wanted = expected_output(message, 64)
            assert reply == (wanted[: len(reply)] if req_id in left else wanted), req_id
    assert preempted


def test_streams_are_dealt_out_to_the_stages():
    scheduler, runner = make_scheduler(
        num_blocks=64, num_stages=3, max_num_batched_tokens=64, max_num_reqs=8, max_model_len=64
    )
    flight = InFlight(scheduler, runner)
    for number in range(7):
        flight.add(f"r{number}", [number + 1] * 3, max_tokens=40)
    sizes = []
    for _ in range(40):
        flight.step()
        sizes.append([len(plan.req_ids) for plan, _ in flight.flying])
    assert all(sum(size) <= 7 and max(size) <= 3 for size in sizes[10:])
    assert sum(map(sum, sizes[10:])) / len(sizes[10:]) > 4.5, "two steps wait, of the three"


def test_chunks_of_a_prompt_follow_each_other_through_the_stages():
    scheduler, runner = make_scheduler(
        num_blocks=64, num_stages=2, max_num_batched_tokens=8, max_model_len=64
    )
    flight = InFlight(scheduler, runner)
    flight.add("long", list(range(1, 23)) * 2, max_tokens=1)
    flight.step()
    flight.step()
    flight.step()
    starts = [shares(plan)[0].num_computed_tokens for plan, _ in flight.flying]
    assert starts == [16], "of the two in flight the older one was committed"
    flight.settle()
    assert len(flight.known["long"]) == 45
