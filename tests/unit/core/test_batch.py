"""The running batch's table, and the columns of plans."""

import msgspec
import numpy as np
import pytest

from pagoda.core.batch import NEVER, RunningBatch
from pagoda.core.plan import NewBlocks, StepPlan, pack_column, unpack_column
from tests.plans import propose

from .fake_runner import add_request, make_scheduler


def test_a_row_is_taken_again_and_knows_nothing_of_its_last_request():
    batch = RunningBatch()
    rows = [batch.take(5, 9, 5, {7}) for _ in range(40)]
    assert sorted(rows) == list(range(40)), "rows that are there go first"
    batch.committed_in_bulk_until[rows[3]] = batch.planned_in_bulk_until[rows[3]] = 8
    batch.release(rows[3], {7})
    assert batch.take(2, 2, NEVER, ()) == rows[3]
    assert batch.known[rows[3]] == batch.missing[rows[3]] == 2
    assert not batch.committed_in_bulk_until[rows[3]] and not batch.planned_in_bulk_until[rows[3]]
    batch.check(rows)


def test_tokens_stop_while_somebody_stops_at_them():
    batch = RunningBatch()
    first, second = batch.take(1, 9, 1, {7}), batch.take(1, 9, 1, {7, 8})
    batch.release(second, {7, 8})
    assert batch.may_stop([1, 7]) and not batch.may_stop([8])
    batch.release(first, {7})
    assert not batch.may_stop([7, 8])


def test_full_tables_are_told_from_requests_that_need_a_look():
    batch = RunningBatch()
    rows = np.array([batch.take(4, 12, 4, ()) for _ in range(4)])
    batch.computed[rows] = [4, 8, 12, 4]
    batch.planned_in_bulk_until[rows] = [8, 8, 12, 0]
    assert batch.planned_alone(rows) == ([1], [2, 3])


def test_integrity_covers_the_table():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", [1, 2, 3], max_tokens=9)
    plan = scheduler.schedule()
    scheduler.commit(plan, runner.execute(plan))
    scheduler._batch.known[plan.rows] += 1
    with pytest.raises(RuntimeError, match="does not know"):
        scheduler.check_integrity()


@pytest.mark.parametrize("num_states", [0, 2])
def test_a_step_of_the_same_streams_follows(num_states):
    """Through full blocks; not behind prompts, nor where somebody leaves or comes."""
    scheduler, runner = make_scheduler(num_states=num_states, num_blocks=200)
    for number, name in enumerate("abc"):
        add_request(scheduler, name, [1, 2, 3][: number + 1], max_tokens=30 if name == "a" else 60)
    follows = []
    for step in range(45):
        if step == 20:
            add_request(scheduler, "d", [4, 5, 6], max_tokens=60)
        plan = scheduler.schedule()
        scheduler.commit(plan, runner.execute(plan))
        scheduler.check_integrity()
        follows.append(plan.follows)
    # 0: the prompts; 20: d's; 30: a has left. Behind each the first step of the new streams.
    assert [step for step, does in enumerate(follows) if not does] == [0, 1, 20, 21, 30]


def test_tokens_that_come_with_more_count_as_well():
    """Steps in which all get a token and nothing else, and steps that tell more, by turns: nobody
    gets a token too many."""
    scheduler, runner = make_scheduler()
    for name in "ab":
        add_request(scheduler, name, [1, 2, 3], max_tokens=20)
    lengths = {"a": 0, "b": 0}
    for step in range(20):
        runner.terse = step % 5 > 0
        plan = scheduler.schedule()
        for delta in scheduler.commit(plan, runner.execute(plan)):
            lengths[delta.req_id] += len(delta.token_ids)
        scheduler.check_integrity()
    assert lengths == {"a": 20, "b": 20} and not scheduler.has_work()


@pytest.mark.parametrize("num_steps", range(4, 8))
def test_a_draft_is_in_the_next_plan(num_steps):
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", [1, 2, 3], max_tokens=40)
    for _ in range(num_steps):
        plan = scheduler.schedule()
        scheduler.commit(plan, runner.execute(plan))
    assert plan.follows
    propose(scheduler, "a", [5])
    plan = scheduler.schedule()
    assert list(plan.drafts.values()) == [[5]] and not plan.follows


def test_plans_travel_between_processes():
    column = np.array([3, 1])
    plan = StepPlan(
        step_id=4, req_ids=["a", "b"], rows=column, starts=column + 1, lens=column * 0 + 1,
        num_tokens=2, drafts={3: [5]}, unsampled={1},
        new_blocks=[NewBlocks(column, column, column)],
    )  # fmt: skip
    raw = msgspec.msgpack.encode(plan, enc_hook=pack_column)
    found = msgspec.msgpack.decode(raw, type=StepPlan, dec_hook=unpack_column)
    assert repr(found) == repr(plan)
    kept = msgspec.structs.replace(found, follows=True).without([0])
    assert not kept.follows
    assert (kept.req_ids, kept.rows.tolist(), kept.num_tokens) == (["b"], [1], 1)
    with pytest.raises(NotImplementedError):
        msgspec.msgpack.encode(object(), enc_hook=pack_column)
