"""Encoders: no KV groups, and every text in one step."""

import pytest

from pagoda.base.errors import ContextLengthError, RequestError
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from tests.plans import shares

from .fake_runner import FakeRunner, planned_tokens, run_all, run_step


def encoder(max_num_reqs: int = 8, tokens: int = 64) -> tuple[Scheduler, FakeRunner]:
    limits = SchedulerLimits(max_num_reqs, tokens, 32, enable_chunked_prefill=False)
    return Scheduler(limits, KVCacheManager([], 1)), FakeRunner([])


def add(scheduler: Scheduler, req_id: str, length: int, **pooling: object) -> None:
    scheduler.add(
        AddRequest(
            req_id=req_id, prompt_token_ids=[1] * length, kind="pool",
            pooling=PoolingParams(**pooling),
        )
    )  # fmt: skip


def test_many_texts_share_a_step_and_none_is_split():
    scheduler, runner = encoder()
    for index, length in enumerate((20, 30, 20, 10, 4)):
        add(scheduler, f"t{index}", length)
    plan, deltas = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"t0": 20, "t1": 30}
    assert all(request.new_block_ids == [] for request in shares(plan))
    assert [delta.finish_reason for delta in deltas] == ["stop", "stop"]
    assert all(delta.embedding for delta in deltas)
    plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"t2": 20, "t3": 10, "t4": 4}
    assert not scheduler.has_work()


def test_as_many_texts_as_the_runner_has_rows():
    scheduler, runner = encoder(max_num_reqs=3)
    for index in range(8):
        add(scheduler, f"t{index}", 2)
    sizes = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler, runner)
        sizes.append(len(shares(plan)))
    assert sizes == [3, 3, 2]


def test_texts_arrive_while_others_are_computed():
    scheduler, runner = encoder()
    add(scheduler, "first", 30)
    plan = scheduler.schedule()
    add(scheduler, "second", 30)
    behind = scheduler.schedule()
    assert planned_tokens(plan) == {"first": 30} and planned_tokens(behind) == {"second": 30}
    for step in (plan, behind):
        (delta,) = scheduler.commit(step, runner.execute(step))
        assert delta.finish_reason == "stop"
    scheduler.check_integrity()


def test_aborted_texts_leave_nothing():
    scheduler, runner = encoder()
    for index in range(4):
        add(scheduler, f"t{index}", 30)
    plan = scheduler.schedule()
    scheduler.abort(["t0", "t3"])
    assert [d.req_id for d in scheduler.commit(plan, runner.execute(plan))] == ["t1"]
    assert set(run_all(scheduler, runner)) == {"t2"}
    scheduler.check_integrity()


def test_what_cannot_be_served_is_refused():
    scheduler, _ = encoder()
    with pytest.raises(ContextLengthError):
        add(scheduler, "long", 33)
    with pytest.raises(RequestError, match="task must be one of"):
        add(scheduler, "task", 3, task="sing")
