"""Plans made before the last result is in, drafts that are rejected, requests that wait outside."""

import pytest

from pagoda.base.errors import RequestError
from pagoda.core.messages import AddRequest
from pagoda.core.plan import RequestResult, StepResult
from pagoda.core.sampling import SamplingParams
from tests.plans import propose, shares

from .fake_runner import (
    VOCAB,
    add_request,
    expected_output,
    make_scheduler,
    planned_tokens,
    run_all,
    run_step,
    tokens_of,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2]
WRONG = VOCAB
"""A draft that is never sampled."""


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return expected_output(AddRequest(req_id="", prompt_token_ids=prompt, sampling=params), 128)


def test_result_one_step_late():
    """Each step is planned before the one before it is committed: no value is read."""
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=5)
    output, pending, starts = [], None, []
    while scheduler.has_work() or pending:
        plan = scheduler.schedule()
        starts += [entry.num_computed_tokens for entry in shares(plan)] if plan else []
        if pending:
            output += tokens_of(scheduler.commit(*pending))
        pending = (plan, runner.execute(plan)) if plan else None
        scheduler.check_integrity()
    assert output == expected(PROMPT, 5)
    # Five tokens are sampled in five plans; none is made on speculation behind the last.
    assert starts == [0, 7, 8, 9, 10]


def test_plan_behind_a_stop_token_is_ignored_and_its_block_may_go_to_another():
    first = expected(PROMPT, 1)[0]
    scheduler, runner = make_scheduler(num_blocks=5, max_model_len=16)
    add_request(scheduler, "a", PROMPT, max_tokens=5, stop_token_ids=[first])
    plans = [scheduler.schedule(), scheduler.schedule()]
    assert planned_tokens(plans[1]) == {"a": 1}
    results = [runner.execute(plan) for plan in plans]
    [delta] = scheduler.commit(plans[0], results[0])
    assert delta.finish_reason == "stop" and delta.token_ids == [first]
    add_request(scheduler, "b", [8] * 9, max_tokens=7)  # Needs blocks that `a` just held.
    plan = scheduler.schedule()
    assert plan.freed == [0]
    result = runner.execute(plan)
    assert list(scheduler.commit(plans[1], results[1])) == []
    deltas = list(scheduler.commit(plan, result))
    deltas += run_all(scheduler, runner)["b"]
    assert tokens_of(deltas) == expected([8] * 9, 7)


def test_late_result_of_an_aborted_request_does_not_reach_its_namesake():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    plan = scheduler.schedule()
    result = runner.execute(plan)
    scheduler.abort(["a"])
    add_request(scheduler, "a", [8, 8])
    assert list(scheduler.commit(plan, result)) == []
    assert tokens_of(run_all(scheduler, runner)["a"]) == expected([8, 8], 4)


def test_token_of_a_request_preempted_in_flight_is_delivered_once():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    plan = scheduler.schedule()
    result = runner.execute(plan)
    scheduler.hold("a", "sleep")
    scheduler.release("a", "sleep")
    deltas = list(scheduler.commit(plan, result))
    assert tokens_of(deltas) == expected(PROMPT, 1)
    plan, more = run_step(scheduler, runner)
    assert plan.new_rows[0].request is None, "the runner kept the row and its tokens"
    assert planned_tokens(plan) == {"a": 8}
    deltas += more + run_all(scheduler, runner)["a"]
    assert tokens_of(deltas) == expected(PROMPT, 4)


def test_preempted_request_whose_last_token_is_in_flight_is_not_computed_again():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=1)
    plan = scheduler.schedule()
    scheduler.hold("a", "sleep")
    scheduler.release("a", "sleep")
    assert scheduler.schedule() is None
    [delta] = scheduler.commit(plan, runner.execute(plan))
    assert delta.finish_reason == "length"


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_are_verified_and_rejected_ones_rolled_back(right):
    output = expected(PROMPT, 9)
    drafts = [*output[1 : 1 + right], *([WRONG] * (3 - right))]
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=9)
    run_step(scheduler, runner)
    propose(scheduler, "a", drafts)
    plan, [delta] = run_step(scheduler, runner)
    [planned] = shares(plan)
    assert (planned.num_tokens, planned.draft_token_ids) == (4, drafts)
    assert delta.token_ids == output[1 : 2 + right]
    plan = scheduler.schedule()
    assert shares(plan)[0].num_computed_tokens == len(PROMPT) + 1 + right
    deltas = list(scheduler.commit(plan, runner.execute(plan)))
    assert tokens_of(deltas + run_all(scheduler, runner)["a"]) == output[2 + right :]


def test_deltas_say_what_came_of_the_drafts_so_far():
    output = expected(PROMPT, 9)
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=9)
    add_request(scheduler, "b", PROMPT[::-1], max_tokens=9)
    run_step(scheduler, runner)
    told = []
    for drafts in ([*output[1:3], WRONG], output[4:6]):
        propose(scheduler, "a", drafts)
        _, deltas = run_step(scheduler, runner)
        told += [(d.req_id, d.num_draft_tokens, d.num_accepted_tokens) for d in deltas]
    assert sorted(told) == [("a", 3, 2), ("a", 5, 4), ("b", 0, 0), ("b", 0, 0)]
    last = {delta.req_id: delta for delta in run_all(scheduler, runner)["a"]}["a"]
    assert (last.finish_reason, last.num_draft_tokens, last.num_accepted_tokens) == ("length", 5, 4)
    stats = scheduler.stats()
    assert (stats.spec_drafts, stats.spec_draft_tokens, stats.spec_accepted_tokens) == (2, 5, 4)


def test_drafts_behind_a_stop_token_are_not_accepted():
    """They came true, and are none of the reply."""
    output = expected(PROMPT, 9)
    assert output[2] not in output[:2]
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=9, stop_token_ids=[output[2]])
    run_step(scheduler, runner)
    propose(scheduler, "a", output[1:6])
    _, [delta] = run_step(scheduler, runner)
    assert (delta.token_ids, delta.finish_reason) == (output[1:3], "stop")
    assert (delta.num_draft_tokens, delta.num_accepted_tokens) == (5, 2)
    stats = scheduler.stats()
    assert (stats.spec_draft_tokens, stats.spec_accepted_tokens) == (5, 2)
    assert stats.spec_accepted_per_position == [1, 1, 0, 0, 0]


def test_block_of_rejected_drafts_never_enters_the_prefix_cache():
    """A two-token plan whose draft fills the block, and is wrong."""
    scheduler, runner = make_scheduler()
    prompt = PROMPT[:6]
    add_request(scheduler, "a", prompt, max_tokens=9)
    run_step(scheduler, runner)
    propose(scheduler, "a", [WRONG])  # Positions 6 and 7: the block ends with the draft.
    _, [delta] = run_step(scheduler, runner)
    output = expected(prompt, 2)
    assert delta.token_ids == output[1:]
    scheduler.abort(["a"])
    add_request(scheduler, "b", [*prompt, *output, 9])  # What the block would hold if full.
    plan, [delta] = run_step(scheduler, runner)
    assert delta.num_cached_tokens == 4


def test_drafts_stay_within_the_tokens_asked_for_and_the_budget():
    scheduler, runner = make_scheduler(max_num_batched_tokens=8)
    add_request(scheduler, "a", PROMPT, max_tokens=3)
    run_step(scheduler, runner)
    propose(scheduler, "a", [1, 2, 3, 4, 5])
    assert len(shares(scheduler.schedule())[0].draft_token_ids) == 1
    add_request(scheduler, "b", PROMPT[::-1], max_tokens=50)
    propose(scheduler, "b", [1])  # Not running yet: nothing to guess from.
    assert planned_tokens(scheduler.schedule()) == {"b": 7}


def test_nobody_is_preempted_for_drafts():
    scheduler, runner = make_scheduler(num_blocks=4, max_model_len=16)
    add_request(scheduler, "a", PROMPT, max_tokens=9)
    add_request(scheduler, "b", [1], max_tokens=9)
    run_step(scheduler, runner)
    propose(scheduler, "a", [1] * 8)
    plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"a": 1, "b": 1}


def test_request_with_drafts_in_flight_sits_out():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=9)
    run_step(scheduler, runner)
    propose(scheduler, "a", [WRONG])
    plan = scheduler.schedule()
    assert scheduler.schedule() is None
    scheduler.hold("a", "sleep")
    scheduler.release("a", "sleep")
    assert scheduler.schedule() is None, "not even from the queue"
    scheduler.commit(plan, runner.execute(plan))
    plan = scheduler.schedule()  # 7 + 2 tokens are known, the first block was cached.
    assert planned_tokens(plan) == {"a": 5}


def test_step_without_a_token_is_repeated_and_later_plans_are_dropped():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    plans = [scheduler.schedule(), scheduler.schedule()]
    runner.mute.add("a")
    results = [runner.execute(plan) for plan in plans]
    assert [list(scheduler.commit(*pair)) for pair in zip(plans, results, strict=True)] == [[], []]
    plan = scheduler.schedule()
    assert shares(plan)[0].num_computed_tokens == len(PROMPT) - 1
    deltas = list(scheduler.commit(plan, runner.execute(plan)))
    assert tokens_of(deltas + run_all(scheduler, runner)["a"]) == expected(PROMPT, 4)


def test_missing_result_counts_as_no_token():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    plan = scheduler.schedule()
    runner.mute.add("a")
    runner.execute(plan)
    stray = RequestResult(req_id="stranger", token_ids=[1])
    assert list(scheduler.commit(plan, StepResult(step_id=plan.step_id, results=[stray]))) == []
    assert tokens_of(run_all(scheduler, runner)["a"]) == expected(PROMPT, 4)


def test_request_waits_outside_the_queue_without_blocking_it():
    scheduler, runner = make_scheduler(max_num_reqs=1)
    add_request(scheduler, "a", PROMPT)
    scheduler.hold("a", "grammar")
    scheduler.hold("a", "adapter")
    add_request(scheduler, "b", [8], max_tokens=1)
    add_request(scheduler, "c", [9], max_tokens=1)
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"b": 1}
    scheduler.release("a", "grammar")
    scheduler.release("a", "something else")
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"c": 1}
    assert scheduler.schedule() is None and not scheduler.has_work()
    assert len(scheduler.req_ids) == 1 and scheduler.stats().num_waiting == 1
    add_request(scheduler, "d", [9], max_tokens=1)
    scheduler.release("a", "adapter")
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"a": 7}, "its place was kept"
    run_all(scheduler, runner)
    scheduler.hold("a", "grammar")
    scheduler.release("a", "grammar")
    assert scheduler.schedule() is None, "requests that are gone are passed over"


def test_held_request_can_be_aborted():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    scheduler.hold("a", "grammar")
    assert scheduler.abort(["a"])[0].finish_reason == "abort"
    scheduler.release("a", "grammar")
    assert not scheduler.req_ids and scheduler.schedule() is None


def test_self_preempted_request_runs_on_when_blocks_come_back():
    """Blocks held by something else can stop even the only request; nothing is lost."""
    scheduler, runner = make_scheduler(num_blocks=4, max_model_len=16)
    add_request(scheduler, "a", PROMPT, max_tokens=9)
    deltas = run_step(scheduler, runner)[1]
    tables = scheduler.kv.open("loader")
    assert scheduler.kv.allocate(tables, 8) is not None
    while plan := scheduler.schedule():
        deltas += scheduler.commit(plan, runner.execute(plan))
    assert scheduler.has_work() and scheduler.stats().num_preemptions == 1
    scheduler.kv.free(tables)
    deltas += run_all(scheduler, runner)["a"]
    assert tokens_of(deltas) == expected(PROMPT, 9)


@pytest.mark.parametrize("windows", [(4,), (8, None)])
def test_a_request_that_the_pool_just_holds_waits_for_what_its_window_passes(windows):
    """Blocks come back when a step is committed; until then those planned ahead hold more."""
    for num_blocks in range(2, 100):
        scheduler, runner = make_scheduler(
            windows=windows, num_blocks=num_blocks, block_size=1, max_num_batched_tokens=8
        )
        try:
            add_request(scheduler, "a", [*range(1, 20), *range(1, 20)], max_tokens=20)
        except RequestError:
            continue
        break
    pending, output = [], []
    for _ in range(200):
        plan = scheduler.schedule()
        if plan is not None:
            pending.append((plan, runner.execute(plan)))
        if plan is None or len(pending) == 3:
            output += tokens_of(scheduler.commit(*pending.pop(0)))
        if not scheduler.has_work():
            break
    assert output == expected([*range(1, 20), *range(1, 20)], 20)
    assert scheduler.stats().num_preemptions == 0
