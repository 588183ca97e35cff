import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.models.dialogue import Usage
from pagoda_agent.task.budget import Budget, BudgetError, Caps, Price, Spent


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_rounds():
    budget = Budget(Caps(rounds=2))
    for _ in range(2):
        budget.before_call()
        budget.after_call(Usage())
    with pytest.raises(BudgetError, match="cap on rounds is reached: 2 of 2 rounds") as caught:
        budget.before_call()
    assert caught.value.cap == "rounds"


def test_tokens_before_and_after():
    budget = Budget(Caps(rounds=None, tokens=1000))
    budget.before_call()
    budget.after_call(Usage(input_tokens=700, cached_tokens=600, output_tokens=300))
    with pytest.raises(BudgetError, match="1,000 of 1,000 tokens"):
        budget.before_call()
    with pytest.raises(BudgetError, match="1,500 of 1,000 tokens") as caught:
        budget.after_call(Usage(input_tokens=500))
    assert caught.value.cap == "tokens"


def test_cost_counts_cached_input_apart():
    budget = Budget(Caps(cost=1.0), Price(input=3.0, output=15.0, cached=0.3))
    budget.after_call(Usage(input_tokens=200_000, cached_tokens=100_000, output_tokens=10_000))
    assert budget.spent.cost == pytest.approx(0.3 + 0.03 + 0.15)
    with pytest.raises(BudgetError, match="cap on cost is reached: 1.3800 of 1.0000") as caught:
        budget.after_call(Usage(input_tokens=300_000))
    assert caught.value.cap == "cost"
    assert Price(3.0, 15.0).of(Usage(1_000_000, 500_000, 0)) == pytest.approx(3.0)


def test_seconds_without_those_that_the_user_takes():
    clock = Clock()
    budget = Budget(Caps(seconds=60), clock=clock)
    clock.now += 20
    budget.pause()
    clock.now += 500
    budget.pause()
    assert budget.spent.seconds == 20
    budget.resume()
    budget.resume()
    clock.now += 30
    assert budget.seconds_left() == 10
    budget.before_call()
    clock.now += 10
    with pytest.raises(BudgetError, match="60 of 60 seconds") as caught:
        budget.before_call()
    assert caught.value.cap == "seconds"
    assert budget.seconds_left() == 0
    assert Budget(Caps()).seconds_left() is None


def test_a_cap_that_cannot_be_kept_ends_the_run():
    for caps, name in ((Caps(tokens=10**9), "tokens"), (Caps(cost=1e9), "cost")):
        budget = Budget(caps, Price(1, 1))
        with pytest.raises(BudgetError, match=f"the cap on {name} cannot be kept"):
            budget.after_call(Usage())
    Budget(Caps(rounds=5)).after_call(Usage())


def test_a_resumed_run_goes_on_counting():
    clock = Clock()
    first = Budget(Caps(), Price(1, 1), clock=clock)
    first.after_call(Usage(100, 0, 10))
    clock.now += 5
    resumed = Budget(Caps(rounds=2), Price(1, 1), first.spent, clock)
    resumed.after_call(Usage(1, 0, 0))
    assert resumed.spent == Spent(2, Usage(101, 0, 10), pytest.approx(111e-6), 5)
    assert resumed.spent.tokens == 111
    with pytest.raises(BudgetError, match="2 of 2 rounds"):
        resumed.before_call()


def test_caps_that_make_no_sense():
    with pytest.raises(ConfigError, match="needs the prices"):
        Budget(Caps(cost=1))
    with pytest.raises(ConfigError, match="cap on tokens is 0"):
        Budget(Caps(tokens=0))
    with pytest.raises(ConfigError, match="cap on seconds is nan"):
        Budget(Caps(seconds=float("nan")))
