"""The running batch's table, and the columns of plans."""

import msgspec
import numpy as np
import pytest

from pagoda.core.batch import NEVER, RunningBatch
from pagoda.core.plan import NewBlocks, StepPlan, pack_column, unpack_column

from .fake_runner import add_request, make_scheduler


def test_a_row_is_taken_again_and_knows_nothing_of_its_last_request():
    batch = RunningBatch()
    rows = [batch.take(5, 9, 5, {7}) for _ in range(40)]
    assert sorted(rows) == list(range(40)), "rows that are there go first"
    batch.quiet_until[rows[3]] = batch.steady_until[rows[3]] = 8
    batch.release(rows[3], {7})
    assert batch.take(2, 2, NEVER, ()) == rows[3]
    assert batch.known[rows[3]] == batch.missing[rows[3]] == 2
    assert not batch.quiet_until[rows[3]] and not batch.steady_until[rows[3]]
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
    batch.steady_until[rows] = [8, 8, 12, 0]
    assert batch.unsteady(rows) == ([1], [2, 3])


def test_integrity_covers_the_table():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", [1, 2, 3], max_tokens=9)
    plan = scheduler.schedule()
    scheduler.commit(plan, runner.execute(plan))
    scheduler._batch.known[plan.rows] += 1
    with pytest.raises(RuntimeError, match="does not know"):
        scheduler.check_integrity()


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
    kept = found.without([0])
    assert (kept.req_ids, kept.rows.tolist(), kept.num_tokens) == (["b"], [1], 1)
    with pytest.raises(NotImplementedError):
        msgspec.msgpack.encode(object(), enc_hook=pack_column)
