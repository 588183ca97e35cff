"""Costs are recovered from steps of known cost, whatever else the machine does meanwhile."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.plan import StepPlan
from pagoda.core.step_time import StepCost, StepSize, StepTimes, only_decodes, size_of
from tests.plans import Planned, plan_of

LAPTOP = StepCost(per_token=2.6e-4, base=1.9e-3, per_pair=6e-8)
SIZES = [StepSize(n, n * context) for n in (1, 8, 40, 200, 512) for context in (30, 500, 3000)]


def learn(cost: StepCost, repeats: int = 10, noise=lambda: 1.0) -> StepTimes:
    times = StepTimes()
    for _ in range(repeats):
        for size in SIZES:
            times.observe(size, cost.seconds(size) * noise())
    return times


def worst_error(times: StepTimes, cost: StepCost) -> float:
    learned = times.cost()
    assert learned is not None and min(learned) >= 0
    return max(abs(learned.seconds(size) / cost.seconds(size) - 1) for size in SIZES)


def test_the_size_of_a_plan():
    prompt = Planned(req_id="a", num_computed_tokens=0, num_tokens=3, new_block_ids=[])
    stream = Planned(req_id="b", num_computed_tokens=9, num_tokens=1, new_block_ids=[])
    plan = plan_of(1, [prompt, stream])
    # Token i of a prompt attends to i keys, itself included.
    assert size_of(plan) == StepSize(4, (1 + 2 + 3) + 10)
    assert StepSize().plus(0, 3).plus(9, 1) == size_of(plan)


def test_nothing_is_known_without_a_step():
    times = StepTimes()
    assert times.cost() is None
    times.observe(StepSize(0, 0), 1.0)
    times.observe(StepSize(5, 15), 0.0)
    assert times.cost() is None


def test_one_step_tells_the_cost_of_its_kind_and_every_token_is_taken_for_the_same():
    times = StepTimes()
    times.observe(StepSize(8, 400), 0.004)
    cost = times.cost()
    assert cost.seconds(StepSize(8, 400)) == pytest.approx(0.004)
    assert cost.seconds(StepSize(16, 800)) == pytest.approx(0.008)


@pytest.mark.parametrize(
    "cost",
    [
        LAPTOP,
        StepCost(4e-2, 1e-3, 1e-5),
        StepCost(2e-5, 5e-3, 1e-9),
        StepCost(1e-3),
        StepCost(0, 1),
    ],
)
def test_exact_times_give_the_exact_cost(cost):
    assert worst_error(learn(cost), cost) < 1e-6


def test_noise_and_descheduled_steps_hardly_matter():
    chance = random.Random(0)

    def noise():
        return chance.lognormvariate(0, 0.1) * (10 if chance.random() < 0.03 else 1)

    assert worst_error(learn(LAPTOP, 30, noise), LAPTOP) < 0.15


def test_a_first_step_that_took_far_too_long_is_soon_made_up_for():
    times = StepTimes()
    times.observe(StepSize(8, 400), 10.0)
    for _ in range(8):
        times.observe(StepSize(8, 400), 0.01)
    assert times.cost().seconds(StepSize(8, 400)) < 0.012


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_machine_that_changes_its_speed_is_followed(factor):
    times = learn(LAPTOP)
    slower = StepCost(*(value * factor for value in LAPTOP))
    for _ in range(60):
        for size in SIZES:
            times.observe(size, slower.seconds(size))
    assert worst_error(times, slower) < 0.1


def test_decode_steps_are_not_forgotten_while_only_mixed_ones_run():
    times = learn(LAPTOP)
    mixed, decode = StepSize(48, 48 * 500), StepSize(8, 8 * 500)
    for _ in range(5000):
        times.observe(mixed, LAPTOP.seconds(mixed))
    assert times.cost().seconds(decode) == pytest.approx(LAPTOP.seconds(decode), rel=0.05)


def test_steps_that_only_decode_have_a_cost_of_their_own():
    """As where a runner captures them: the same size, at half the time."""
    times = StepTimes()
    for _ in range(20):
        for size in SIZES:
            times.observe(size, LAPTOP.seconds(size))
            if size.tokens <= 40:
                times.observe(size, LAPTOP.seconds(size) / 2, decodes=True)
    size = StepSize(8, 4000)
    assert times.cost().seconds(size) == pytest.approx(LAPTOP.seconds(size), rel=0.02)
    assert times.cost(decodes=True).seconds(size) == pytest.approx(
        LAPTOP.seconds(size) / 2, rel=0.02
    )


def test_a_step_in_many_is_to_decode_only():
    times, size = StepTimes(), StepSize(40, 4000)
    asked = []
    for _ in range(200):
        times.observe(size, 0.01, decodes=times.wants_decode())
        asked.append(times._last_decode)
    assert len(set(asked)) == 1 + 3
    assert only_decodes(StepPlan(step_id=1))


def test_memory_is_bounded():
    times = StepTimes()
    for tokens in range(15):
        for context in range(15):
            times.observe(StepSize(2**tokens, 2 ** (tokens + context)), 1.0)
    assert len(times._classes) <= 32


positive = st.floats(1e-9, 10, allow_nan=False)


@given(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 9000), positive), min_size=1))
def test_any_times_give_a_cost_that_can_be_used(steps):
    times = StepTimes()
    for tokens, start, seconds in steps:
        times.observe(StepSize().plus(start, tokens), seconds)
    cost = times.cost()
    assert min(cost) >= 0 and all(map(math.isfinite, cost)) and sum(cost) > 0


@given(
    st.builds(StepCost, positive, positive, st.floats(0, 1e-3)),
    st.integers(0, 9000),
    st.floats(1.01, 9),
)
def test_most_tokens_fill_the_step(cost, start, factor):
    streams = StepSize(8, 4000)
    seconds = cost.seconds(streams) * factor
    tokens = cost.most_tokens(streams, start, seconds)
    assert cost.seconds(streams.plus(start, tokens)) == pytest.approx(seconds)
    assert cost.most_tokens(streams, start, cost.seconds(streams)) == 0
