"""Which guesses are verified: as many as make the most of a step, learned from what came true."""

import itertools
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.speculation.chances import Chances, OwnChances, worthwhile
from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from tests.unit.core.fake_runner import (
    add_request,
    expected_output,
    make_scheduler,
    shares,
    tokens_of,
)

FALLING = st.lists(st.floats(0.01, 1.0), max_size=3).map(
    lambda each: list(itertools.accumulate(each, lambda x, y: x * y))
)


@given(
    st.lists(FALLING, min_size=1, max_size=3),
    st.floats(0.1, 10.0),
    st.floats(0.001, 5.0),
    st.integers(0, 9),
)
def test_no_other_choice_gives_more_tokens_a_second(chances, seconds, row_seconds, most):
    reqs = len(chances)

    def rate(counts):
        tokens = reqs + sum(sum(own[:n]) for own, n in zip(chances, counts, strict=True))
        return tokens / (seconds + row_seconds * sum(counts))

    counts = worthwhile(chances, reqs, seconds, row_seconds, most)
    assert sum(counts) <= most
    every = itertools.product(*(range(len(own) + 1) for own in chances))
    best = max(rate(other) for other in every if sum(other) <= most)
    assert math.isclose(rate(counts), best, rel_tol=1e-9)


def test_what_one_request_does_moves_its_own_chance_more_than_others():
    common = Chances([0.5])
    repeats, invents = OwnChances(common), OwnChances(common)
    for _ in range(12):
        repeats.observe(0, 1, True)
        invents.observe(0, 1, False)
    assert chance(repeats) > 0.75 > common.of(0) > 0.25 > chance(invents)
    assert chance(OwnChances(common)) == common.of(0)


def chance(own: OwnChances, before: int = 1) -> float:
    return own.of_all([0], before, [2])[0]


def test_a_chance_depends_on_the_token_in_front():
    own = OwnChances(Chances([0.5]))
    for _ in range(40):
        own.observe(0, 7, False)
        own.observe(0, 8, True)
    assert chance(own, 8) > 0.75 > chance(own, 9) > 0.25 > chance(own, 7)
    first, second = own.of_all([0, 0], 8, [7, 5])
    assert math.isclose(second, first * chance(own, 7))


@given(st.lists(st.booleans(), max_size=600))
def test_chances_are_shares_and_follow_what_comes(came):
    own = OwnChances(Chances([0.9]))
    for true in [*came, *[False] * 200]:
        own.observe(0, 1, true)
        assert 0 < chance(own) <= 1
    assert chance(own) < 0.1


@dataclass
class Oracle:
    """Knows what requests will say; `wrong` of its tokens are others."""

    limit: int
    wrong: set[int] = field(default_factory=set)
    chances: list[float] = field(default_factory=lambda: [0.5])
    context: int = 128
    asked: int = 0
    ended: list[str] = field(default_factory=list)

    def guess(self, req, most: int) -> list[Guess]:
        self.asked += 1
        if self.asked > self.limit:
            raise ValueError("no more")
        known = len(req.token_ids)
        said = expected_output(req.message, self.context)[known - req.prompt_len :][:most]
        tokens = [t + 1 if known + i in self.wrong else t for i, t in enumerate(said)]
        return [Guess(tokens, [0] * len(tokens))] if tokens else []

    def forget(self, req) -> None:
        self.ended.append(req.req_id)


def serve(speculator, costs, *, reqs=1, max_tokens=60, **limits):
    """Let requests run on a device whose steps cost `costs` = (base, per row) seconds: the number
    of steps, the guesses of each, and the seconds in all."""
    scheduler, runner = make_scheduler(speculator=speculator, num_blocks=400, **limits)
    for i in range(reqs):
        add_request(scheduler, f"r{i}", [1, 2, 3 + i] * 4, max_tokens=max_tokens)
    outputs = {req_id: [] for req_id in scheduler.req_ids}
    wanted = {req.req_id: expected_output(req.message, 128) for req in scheduler._requests.values()}
    drafts, seconds, steps = [], 0.0, 0
    while scheduler.has_work():
        plan = scheduler.schedule()
        took = costs[0] + costs[1] * plan.num_tokens
        for delta in scheduler.commit(plan, runner.execute(plan), took):
            outputs[delta.req_id] += delta.token_ids
        scheduler.check_integrity()
        drafts.append(sum(map(len, plan.drafts.values())))
        seconds, steps = seconds + took, steps + 1
    assert outputs == wanted
    return steps, drafts, seconds, scheduler


def test_right_guesses_of_one_request_make_it_faster():
    steps, drafts, seconds, scheduler = serve(
        Speculator(Oracle(999), SpeculationLimits(8)), (3e-3, 5e-4)
    )
    plain_steps, _, plain_seconds, _ = serve(None, (3e-3, 5e-4))
    assert steps < plain_steps / 3 and seconds < plain_seconds / 2
    assert max(drafts) == 8
    stats = scheduler.stats()
    assert stats.spec_draft_tokens == stats.spec_accepted_tokens == sum(drafts) > 40
    assert stats.spec_drafts == sum(count > 0 for count in drafts)
    assert len(stats.spec_accepted_per_position) == 8
    assert stats.spec_accepted_per_position[0] == stats.spec_drafts


def test_wrong_guesses_are_soon_left_out():
    always = set(range(1000))
    _, drafts, seconds, _ = serve(
        Speculator(Oracle(999, wrong=always), SpeculationLimits(8)), (3e-3, 5e-4)
    )
    _, _, plain_seconds, _ = serve(None, (3e-3, 5e-4))
    assert sum(drafts[20:]) == 0
    assert seconds < 1.1 * plain_seconds


def test_where_each_row_costs_the_same_little_is_verified():
    """A step of many requests gains nothing by longer ones. A few tries find out."""
    _, drafts, _, _ = serve(Speculator(Oracle(999), SpeculationLimits(8)), (1e-9, 1e-3))
    assert sum(count > 0 for count in drafts) <= 4
    oracle = Oracle(9999)
    _, drafts, _, _ = serve(Speculator(oracle, SpeculationLimits(8)), (1e-3, 1e-3), reqs=8)
    assert sum(count > 0 for count in drafts) <= 4
    assert oracle.asked < 8 * 30  # nobody is asked for what does not pay


def test_never_more_guesses_than_there_are_logits_for():
    speculator = Speculator(Oracle(9999), SpeculationLimits(8, most_in_step=3))
    _, drafts, _, _ = serve(speculator, (1e-1, 1e-6), reqs=4)
    assert max(drafts) == 3


def test_fewer_guesses_than_the_least_are_not_verified():
    speculator = Speculator(Oracle(9999, wrong={30}), SpeculationLimits(8, least=5))
    _, drafts, _, _ = serve(speculator, (1e-1, 1e-4))
    assert {count for count in drafts[:-1] if count} <= {5, 6, 7, 8}


def test_a_proposer_that_fails_is_not_asked_again_and_nobody_notices(caplog):
    oracle = Oracle(5)
    serve(Speculator(oracle, SpeculationLimits(4)), (3e-3, 5e-4), reqs=2)
    assert oracle.asked == 6
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Nothing is guessed any more, which costs speed only" in caplog.text


def test_ended_requests_are_forgotten():
    oracle = Oracle(9999)
    speculator = Speculator(oracle, SpeculationLimits(4))
    serve(speculator, (3e-3, 5e-4), reqs=3, max_num_reqs=2)
    assert sorted(oracle.ended) == ["r0", "r1", "r2"]
    assert not speculator._streams


def test_a_slow_first_measurement_is_not_believed_for_ever():
    """The first step with guesses happened to take ten times as long."""
    scheduler, runner = make_scheduler(
        speculator=Speculator(Oracle(9999, context=1500), SpeculationLimits(4)),
        num_blocks=900,
        max_model_len=1500,
    )
    add_request(scheduler, "r", [1, 2, 3], max_tokens=1400)
    first, drafts = True, []
    while scheduler.has_work():
        plan = scheduler.schedule()
        seconds = 3e-3 + 5e-4 * plan.num_tokens
        if plan.drafts and first:
            seconds, first = 10 * seconds, False
        scheduler.commit(plan, runner.execute(plan), seconds)
        drafts.append(bool(plan.drafts))
    assert not first
    assert sum(drafts[-50:]) > 40


@pytest.mark.parametrize("depth", [1, 2])
def test_guesses_beside_a_prompt(depth):
    speculator = Speculator(Oracle(9999), SpeculationLimits(4))
    scheduler, runner = make_scheduler(
        speculator=speculator, max_num_batched_tokens=16, num_blocks=200
    )
    add_request(scheduler, "a", [1, 2, 3], max_tokens=40)
    outputs, pending, together = {"a": [], "b": []}, [], 0
    for step in itertools.count():
        if step == 6:
            add_request(scheduler, "b", [7] * 90, max_tokens=5)
        plan = scheduler.schedule()
        if plan is not None:
            pending.append((plan, runner.execute(plan)))
            together += bool(plan.drafts) and len(shares(plan)) > 1
        if plan is None or len(pending) >= depth:
            if not pending:
                break
            for delta in scheduler.commit(*pending.pop(0), 1e-3):
                outputs[delta.req_id] += tokens_of([delta])
        scheduler.check_integrity()
    assert len(outputs["a"]) == 40 and len(outputs["b"]) == 5
    assert depth == 2 or together


def test_guesses_among_many_requests_are_short():
    """Making long ones would take more time than a step can win."""
    asked: list[int] = []

    class Asked(Oracle):
        def guess(self, req, most: int) -> list[Guess]:
            asked.append(most)
            return super().guess(req, most)

    limits = SpeculationLimits(24, most_in_step=32)
    serve(Speculator(Asked(9999), limits), (3e-3, 1e-6), reqs=8, max_num_reqs=8)
    assert set(asked) >= {8}
    asked.clear()
    serve(Speculator(Asked(9999), limits), (3e-3, 1e-6))
    assert set(asked) == {24}


def test_a_scheduler_without_requests_is_no_failure():
    speculator = Speculator(Oracle(999), SpeculationLimits(8))
    _, _, _, scheduler = serve(speculator, (3e-3, 5e-4))
    assert scheduler.schedule() is None and not speculator._failed
