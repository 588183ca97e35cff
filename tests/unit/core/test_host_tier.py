"""What the pool evicts is found in the host's memory, but for what a failed step was to copy."""

from pagoda.core.messages import RequestDelta
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.scheduler import Scheduler

from .fake_runner import FakeRunner, add_request, make_scheduler, run_all, run_step

PROMPTS = {name: [(3 * i + place) % 24 for i in range(24)] for place, name in enumerate("abcdefgh")}


def ask(scheduler: Scheduler, runner: FakeRunner, name: str, times: int = 0) -> RequestDelta:
    """The first delta of a request for a prompt."""
    add_request(scheduler, f"{name}{times}", PROMPTS[name], max_tokens=1)
    return run_all(scheduler, runner)[f"{name}{times}"][0]


def fail(scheduler: Scheduler, plan: StepPlan) -> None:
    """As the engine has it: whoever was in the step ends."""
    results = [RequestResult(req_id=req_id, error="failed") for req_id in plan.req_ids]
    scheduler.commit(plan, StepResult(step_id=plan.step_id, results=results, copied=False))


def test_evicted_prefixes_come_back():
    for shape in ({}, {"windows": (None, 6)}, {"num_states": 2}):
        scheduler, runner = make_scheduler(num_blocks=16, num_host_blocks=200, **shape)
        for name in PROMPTS:
            assert ask(scheduler, runner, name).num_cached_tokens == 0
        for name in PROMPTS:
            found = ask(scheduler, runner, name, 1)
            assert found.num_cached_tokens == 20
            assert 0 < found.cached_tiers.host <= 20 and not found.cached_tiers.disk


def test_what_came_back_is_in_the_pool():
    scheduler, runner = make_scheduler(num_blocks=16, num_host_blocks=200)
    for name in PROMPTS:
        ask(scheduler, runner, name)
    assert ask(scheduler, runner, "a", 1).cached_tiers.host == 20
    assert ask(scheduler, runner, "a", 2).cached_tiers == (0, 0)


def test_what_was_used_least_lately_goes_first():
    scheduler, runner = make_scheduler(num_blocks=8, num_host_blocks=20)
    for name in "abcd":
        ask(scheduler, runner, name)
    assert ask(scheduler, runner, "a", 1).num_cached_tokens == 20
    for name in "efg":
        ask(scheduler, runner, name)
    assert ask(scheduler, runner, "a", 2).num_cached_tokens == 20
    missed = ask(scheduler, runner, "b", 1)
    assert missed.num_cached_tokens < 20 and missed.prefix_miss == "evicted"


def test_copies_of_a_failed_step_are_not_used():
    scheduler, runner = make_scheduler(num_blocks=8, num_host_blocks=200)
    ask(scheduler, runner, "a")
    add_request(scheduler, "b0", PROMPTS["b"], max_tokens=1)
    plan = scheduler.schedule()
    assert any(copy.to_host for copy in plan.copies)
    runner._take_rows(plan)
    fail(scheduler, plan)
    scheduler.check_integrity()
    assert ask(scheduler, runner, "a", 1).num_cached_tokens < 20
    # A block that failed to come is known to nobody either.
    for name in "cd":
        ask(scheduler, runner, name)
    add_request(scheduler, "a2", PROMPTS["a"], max_tokens=1)
    plan = scheduler.schedule()
    assert not all(copy.to_host for copy in plan.copies)
    runner._take_rows(plan)
    fail(scheduler, plan)
    assert ask(scheduler, runner, "a", 3).num_cached_tokens == 20


def test_nothing_is_copied_that_is_there_already():
    scheduler, runner = make_scheduler(num_blocks=8, num_host_blocks=200)
    for name in "abcab":
        ask(scheduler, runner, name, scheduler.stats().num_steps)
    add_request(scheduler, "last", PROMPTS["c"], max_tokens=1)
    plan, _ = run_step(scheduler, runner)
    assert plan.copies and not any(copy.to_host for copy in plan.copies)


def test_a_reset_forgets_them():
    scheduler, runner = make_scheduler(num_blocks=8, num_host_blocks=200)
    for name in "abc":
        ask(scheduler, runner, name)
    assert scheduler.reset_prefix_cache()
    scheduler.check_integrity()
    assert ask(scheduler, runner, "a", 1).num_cached_tokens == 0
