"""Streams that are moved on all at once: plans and deltas are those of streams moved one by one."""

import random

import pytest

from pagoda.core import streams
from pagoda.core.plan import StepPlan, StepResult
from pagoda.core.scheduler import Scheduler

from .fake_runner import VOCAB, add_request, make_scheduler, tokens_of


def play(seed: int, late: bool, **changes: object) -> tuple[list, list, int]:
    """Random events between steps: what was planned, what clients were told, and the most steps
    that one run of streams had."""
    chance, longest = random.Random(seed), 0
    scheduler, runner = make_scheduler(**{"num_blocks": 24, "max_num_reqs": 5, **changes})
    plans: list = []
    told: list = []
    pending: tuple[StepPlan, StepResult] | None = None
    held = ""
    for step in range(180):
        event = chance.random()
        name = f"r{chance.randrange(10)}"
        if event < 0.06 and name not in scheduler.req_ids:
            prompt = [chance.randrange(VOCAB) for _ in range(chance.randint(1, 20))]
            stops = [chance.randrange(VOCAB)] if chance.random() < 0.3 else []
            add_request(
                scheduler, name, prompt, max_tokens=chance.randint(1, 70), stop_token_ids=stops
            )
        elif event < 0.065:
            told += scheduler.abort([name])
        elif event < 0.07:
            scheduler.propose(name, [chance.randrange(VOCAB)])
        elif event < 0.075:
            runner.mute.update(set(scheduler.req_ids) & {name} & runner.rows.keys())
        elif event < 0.08:
            runner.broken.update(set(scheduler.req_ids) & {name} & runner.rows.keys())
        elif event < 0.09:
            scheduler.release(held, "test")
            held = "" if held else name
            scheduler.hold(held, "test")
        plan = scheduler.schedule()
        if plan is not None:
            requests = plan.requests
            if "windows" in changes:  # several groups' blocks may lie elsewhere
                requests = [(one.req_id, one.num_computed_tokens) for one in requests]
            plans.append((plan.step_id, requests, plan.rows, plan.freed, plan.again))
            longest = max(longest, plan.ahead)
        if pending is not None:
            told += scheduler.commit(*pending)
            pending = None
        if plan is not None:
            pending = plan, runner.execute(plan)
            if not late:
                told += scheduler.commit(*pending)
                pending = None
        if step % 10 == 0:
            scheduler.check_integrity()
        told.append(scheduler.stats())
    return plans, sorted_by_step(told), longest


def sorted_by_step(told: list) -> list:
    """A step's deltas come in no order."""
    steps: list = [[]]
    for entry in told:
        if hasattr(entry, "req_id"):
            steps[-1].append(entry)
        else:
            steps[-1].sort(key=lambda delta: delta.req_id)
            steps += [entry, []]
    return steps


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"windows": (None, 8), "num_blocks": 200}, {"prefix_caching": False}]
)
def test_a_run_of_streams_changes_nothing(late, changes, monkeypatch):
    runs = 0
    for seed in range(3):
        plans, told, longest = play(seed, late, **changes)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "_only_streams", lambda self: False)
            plain_plans, plain_told, none = play(seed, late, **changes)
        assert plans == plain_plans
        assert told == plain_told
        assert none == 0
        runs += longest > 5
    assert runs


def test_tokens_of_long_runs_are_all_there(monkeypatch):
    """Also those that requests were told of late, and rows that were forgotten."""
    monkeypatch.setattr(streams, "_KEPT_STEPS", 3)
    found = []
    for kept in (True, False):
        scheduler, runner = make_scheduler(num_blocks=200)
        if not kept:
            monkeypatch.setattr(Scheduler, "_only_streams", lambda self: False)
        for number in range(4):
            add_request(scheduler, f"r{number}", [number] * 5, max_tokens=60)
        told: dict[str, list] = {f"r{number}": [] for number in range(4)}
        while scheduler.has_work():
            plan = scheduler.schedule()
            for delta in scheduler.commit(plan, runner.execute(plan)):
                told[delta.req_id].append(delta)
        found.append({name: tokens_of(deltas) for name, deltas in told.items()})
    assert found[0] == found[1]
    assert all(len(tokens) == 60 for tokens in found[0].values())
