"""Steps that continue the last one give what steps prepared from their plans give."""

import random

import pytest

from pagoda.runtime.steps.prepared import PreparedStep
from tests.plans import Planned, plan_of


@pytest.fixture
def script(make_request):
    """Decode steps, broken by arrivals, departures, preemptions, chunks, drafts and rollbacks."""

    def play(driver) -> tuple[dict[str, list[int]], int]:
        chance, advanced = random.Random(5), 0
        for number in range(6):
            sampling = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0.0}
            driver.add(make_request(f"r{number}", 10 + number, **sampling))
        alive = [f"r{number}" for number in range(4)]
        late = ["r4", "r5"]
        for step in range(60):
            event = chance.random() if step % 6 == 5 else 1.0
            drafts = None
            if event < 0.2 and late:
                alive.append(late.pop())
            elif event < 0.4 and len(alive) > 2:
                driver.free(alive.pop(0))
            elif event < 0.6:
                driver.preempt(alive[0])
            elif event < 0.8:
                drafts = {alive[0]: [1, 2]}
            elif event < 1.0:
                alive.reverse()
            driver.step(dict.fromkeys(alive, 8), drafts)
            advanced += driver.runner._step.follows
        return driver.tokens, advanced

    return play


def test_a_run_changes_nothing(script, make_driver, monkeypatch):
    with_runs, advanced = script(make_driver(max_num_reqs=8))
    assert advanced > 20
    monkeypatch.setattr(PreparedStep, "advance", lambda *args: False)
    without, none = script(make_driver(max_num_reqs=8))
    assert none == 0
    assert with_runs == without


def test_a_run_ends_where_blocks_are_missing(make_driver, make_request):
    """A plan that forgets a block is that request's fault, run or not."""
    driver = make_driver()
    driver.add(make_request("a", 15, temperature=0.0))
    driver.finish(["a"], 3)
    assert driver.runner._step.follows
    start = driver.computed["a"]
    planned = Planned("a", num_computed_tokens=start, num_tokens=1, new_block_ids=[[], []])
    results = []
    for offset in range(5):  # the sliding group's block ends within 4 tokens
        planned.num_computed_tokens = start + offset
        plan = plan_of(driver.step_id + offset, [planned])
        plan.follows = True
        results += driver.runner.execute(plan).results
    assert "does not fit" in results[-1].error
