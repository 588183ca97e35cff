"""Models with recurrent layers verify guesses: each one's state has a block of its own until it is
known how many are right."""

import pytest

from pagoda.core.scheduler import Scheduler
from tests.plans import Planned, propose, shares

from .fake_runner import (
    VOCAB,
    FakeRunner,
    add_request,
    expected_output,
    make_scheduler,
    run_all,
    run_step,
    tokens_of,
)

TEXT = [1 + (7 * i + i * i // 3) % 20 for i in range(200)]
WRONG = VOCAB - 1


def hybrid(num_blocks: int = 400, **limits) -> tuple[Scheduler, FakeRunner]:
    values = {"max_model_len": 256, "max_num_batched_tokens": 64, **limits}
    return make_scheduler(num_blocks=num_blocks, num_states=2, **values)


def begin(scheduler: Scheduler, runner: FakeRunner, name: str = "r", **fields) -> list[int]:
    """Let a request say its first token: all that it will say."""
    prompt = fields.pop("prompt", TEXT[:6])
    add_request(scheduler, name, prompt, **fields)
    while name not in runner.rows or len(runner.rows[name].tokens) == len(prompt):
        run_step(scheduler, runner)
    return expected_output(runner.rows[name].message, scheduler.limits.max_model_len)


def planned(scheduler: Scheduler, runner: FakeRunner) -> Planned:
    plan, _ = run_step(scheduler, runner)
    (share,) = shares(plan)
    return share


def finish(scheduler: Scheduler, runner: FakeRunner, name: str = "r") -> list[int]:
    return tokens_of(run_all(scheduler, runner)[name])


@pytest.mark.parametrize("right", range(4))
def test_a_request_goes_on_from_the_state_behind_its_last_kept_token(right):
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, max_tokens=12)
    propose(scheduler, "r", [*output[1 : 1 + right], *[WRONG] * (3 - right)])
    step = planned(scheduler, runner)
    _, *written = step.states
    assert len(set(written)) == 4 and step.num_tokens == 4
    after = planned(scheduler, runner)
    assert after.states[0] == written[right]
    assert after.states[1] not in {*written} - {written[right]}
    assert finish(scheduler, runner) == output[right + 3 :]
    assert scheduler.stats().num_preemptions == 0


def test_where_no_states_are_free_fewer_drafts_are_verified():
    scheduler, runner = hybrid(num_blocks=12, prefix_caching=False)
    output = begin(scheduler, runner, max_tokens=12)
    kv = scheduler.kv
    state = kv.layout.block_bytes[-1]
    others = kv.open("others")
    while kv.free_bytes >= 3 * state + kv.unit_bytes:
        assert kv.allocate(others, others.capacity + 1) is not None
    propose(scheduler, "r", output[1:5])
    step = planned(scheduler, runner)
    assert 1 <= len(step.draft_token_ids) < 4
    assert step.draft_token_ids == output[1 : 1 + len(step.draft_token_ids)]
    assert len(step.states) == 2 + len(step.draft_token_ids)
    kv.free(others)
    done = 1 + step.num_tokens
    assert finish(scheduler, runner) == output[done:]
    assert scheduler.stats().num_preemptions == 0


def test_nobody_is_preempted_for_the_states_of_drafts():
    """One request guesses within its last block, the other one needs another block."""
    scheduler, runner = hybrid(num_blocks=20, prefix_caching=False)
    outputs = {
        name: begin(scheduler, runner, name, prompt=TEXT[:length], max_tokens=16)
        for name, length in (("a", 4), ("b", 8))
    }
    kv = scheduler.kv
    others = kv.open("others")
    while kv.free_bytes - kv.unit_bytes >= kv.layout.block_bytes[-1]:
        assert kv.allocate(others, others.capacity + 1) is not None
    propose(scheduler, "a", outputs["a"][2:4])
    plan, _ = run_step(scheduler, runner)
    assert [share.num_tokens for share in shares(plan)] == [1, 1]
    kv.free(others)
    deltas = run_all(scheduler, runner)
    assert [tokens_of(deltas[name]) for name in "ab"] == [outputs["a"][3:], outputs["b"][2:]]
    assert scheduler.stats().num_preemptions == 0


def test_whoever_waits_gets_the_memory_first():
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, max_tokens=12)
    add_request(scheduler, "next", TEXT[:30])
    propose(scheduler, "r", output[1:4])
    plan, _ = run_step(scheduler, runner)
    assert {share.req_id: share.draft_token_ids for share in shares(plan)} == {"r": [], "next": []}


def test_a_reply_is_resumed_within_verified_drafts():
    """The state behind 64 tokens is kept although the step went past them."""
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, prompt=TEXT[:61], max_tokens=9)
    propose(scheduler, "r", output[1:7])
    run_step(scheduler, runner)
    assert finish(scheduler, runner) == output[7 + 1 :]
    add_request(scheduler, "again", [*TEXT[:61], *output, 3], max_tokens=1)
    (delta,) = run_all(scheduler, runner)["again"]
    assert delta.num_cached_tokens == 64


def test_no_state_behind_a_rejected_draft_is_kept():
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, prompt=TEXT[:61], max_tokens=4)
    drafts = [output[1], WRONG, WRONG, WRONG]  # the third stands at position 64
    propose(scheduler, "r", drafts)
    run_step(scheduler, runner)
    finish(scheduler, runner)
    add_request(scheduler, "again", [*TEXT[:61], output[0], *drafts, 3], max_tokens=1)
    (delta,) = run_all(scheduler, runner)["again"]
    assert delta.num_cached_tokens == 60


@pytest.mark.parametrize("right", range(3))
@pytest.mark.parametrize("when", ["in flight", "right after"])
def test_a_preempted_request_computes_its_states_anew(when, right):
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, max_tokens=12)
    propose(scheduler, "r", [*output[1 : 1 + right], *[WRONG] * (2 - right)])
    plan = scheduler.schedule()
    result = runner.execute(plan)
    if when == "right after":
        scheduler.commit(plan, result)
    scheduler.hold("r", "grammar")  # preempts it
    scheduler.check_integrity()
    if when == "in flight":
        scheduler.commit(plan, result)
    assert scheduler.kv.free_bytes == scheduler.kv.total_bytes
    scheduler.release("r", "grammar")
    assert finish(scheduler, runner) == output[right + 2 :]


def test_a_request_whose_tokens_do_not_come_begins_anew():
    scheduler, runner = hybrid()
    output = begin(scheduler, runner, max_tokens=8)
    propose(scheduler, "r", output[1:4])
    runner.mute.add("r")
    run_step(scheduler, runner)
    assert finish(scheduler, runner) == output[1:]
    assert scheduler.stats().num_preemptions == 1
