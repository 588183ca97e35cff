"""A long prompt beside streams, on simulated machines: nobody waits much longer, nobody starves."""

import math

import pytest

from pagoda.core.limits import SchedulerLimits
from pagoda.core.pace import LEAST_PROMPT_TOKENS, PromptRoom
from pagoda.core.step_time import StepCost, StepSize, StepTimes

from .fake_runner import planned_tokens
from .machine import MACHINES, Machine


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("name", MACHINES)
def test_streams_keep_within_three_times_their_pace(name, noise):
    machine = Machine(MACHINES[name], noise, max_step_growth=2.5)
    before = machine.start_streams(8)
    tokens, seconds = machine.read_prompt(4000)
    assert p99(seconds) <= 3 * p99(before)
    # A step in 64 leaves the prompt out, to measure the streams alone.
    assert tokens.count(0) <= 1 + len(tokens) // 64
    assert min(filter(None, tokens[:-1])) >= LEAST_PROMPT_TOKENS
    # The bound is used, not only kept: the prompt is not slower than it has to be.
    assert sum(seconds) / len(seconds) > 1.8 * p99(before) / (1 + 2 * noise)


def test_without_a_bound_a_step_takes_the_whole_budget():
    machine = Machine(MACHINES["laptop"])
    machine.start_streams(8)
    tokens, _ = machine.read_prompt(4000)
    assert tokens[0] == 512 - 8


def test_a_bound_in_seconds():
    machine = Machine(MACHINES["laptop"], max_step_seconds=0.03)
    machine.start_streams(8)
    _, seconds = machine.read_prompt(4000)
    assert max(seconds) < 0.033
    assert seconds[5] > 0.027


@pytest.mark.parametrize("name", MACHINES)
def test_a_prompt_alone_takes_short_steps_and_is_read_no_slower(name):
    """Who comes while it is read waits for the end of a step."""
    cost = MACHINES[name]
    whole = sum(Machine(cost).read_prompt(4000)[1])
    machine = Machine(cost, max_step_growth=2.5)
    tokens, seconds = machine.read_prompt(4000)
    assert sum(seconds) < 1.12 * whole
    assert min(tokens[:-1]) >= 32
    # Steps of so many tokens, or eight times as long as one is without any.
    longest = max(0.02, 8 * cost.base, cost.seconds(StepSize().plus(4000, 33)))
    assert max(seconds[5:]) < 1.05 * longest


def test_a_step_costs_no_more_without_tokens_than_the_shortest_one_seen():
    """What a context costs each step looks like that where sizes are alike."""
    times = StepTimes()
    times.observe(StepSize().plus(40, 1), 0.003, decodes=True)
    for start, tokens, seconds in ((500, 90, 0.048), (2000, 40, 0.046), (4000, 20, 0.067)):
        times.observe(StepSize().plus(start, tokens), seconds)
    assert times.cost().base > 2 * 0.003
    limits = SchedulerLimits(8, 512, 8192, max_step_growth=2.2)
    room = PromptRoom(limits, times, StepSize(), 512)
    tokens = room.most(0, 512)
    assert tokens >= 32
    room.take(0, tokens)
    assert room.seconds <= max(0.02, 8 * 0.003)


def test_without_a_bound_a_prompt_alone_takes_the_whole_budget():
    assert Machine(MACHINES["laptop"]).read_prompt(2000)[0] == [512, 512, 512, 464]


def test_few_streams_are_as_patient_as_eight():
    cost = MACHINES["laptop"]
    machine = Machine(cost, max_step_growth=2.5)
    machine.start_streams(1)
    _, seconds = machine.read_prompt(2000)
    # Eight tokens at this stream's context, 31 + 100 of them and one more per step.
    eight = cost.base + 8 * (cost.per_token + 150 * cost.per_pair)
    assert seconds[0] == pytest.approx(2.5 * eight, rel=0.05)


def test_a_bound_that_nothing_keeps_still_lets_prompts_through():
    machine = Machine(MACHINES["slow"], max_step_seconds=1e-6)
    machine.start_streams(8)
    tokens, _ = machine.read_prompt(40)
    assert tokens == [LEAST_PROMPT_TOKENS] * 10


def test_prompts_share_one_allowance_and_streams_behind_them_go_on():
    machine = Machine(MACHINES["laptop"], max_step_growth=2.5, policy="priority")
    machine.start_streams(8)
    for name in ("first", "second", "third"):
        machine.add(name, 1000, priority=-1)
    plan, seconds = machine.step()
    planned = planned_tokens(plan)
    assert all(planned[f"stream{i}"] == 1 for i in range(8))
    assert planned["first"] >= LEAST_PROMPT_TOKENS and "third" not in planned
    assert seconds < 0.012  # 2.5 times 4.1 ms, and a little for learning


def test_whole_prompts_are_not_split_for_the_time():
    machine = Machine(MACHINES["laptop"], max_step_growth=2.5, enable_chunked_prefill=False)
    machine.start_streams(8)
    assert machine.read_prompt(300)[0] == [300]


def test_a_slower_machine_is_noticed_while_prompts_never_end():
    machine = Machine(MACHINES["laptop"], max_step_growth=2.5)
    machine.start_streams(8)
    machine.cost = StepCost(*(3 * value for value in machine.cost))
    for index in range(7):
        machine.add(f"prompt{index}", 4000, max_tokens=1)
    steps = [machine.step()[1] for _ in range(1000)]
    streams = machine.cost.base + 8 * (machine.cost.per_token + 1000 * machine.cost.per_pair)
    assert sum(steps[-100:]) / 100 == pytest.approx(2.5 * streams, rel=0.2)


def test_plans_follow_from_the_times_alone():
    def plans() -> list[dict[str, int]]:
        machine = Machine(MACHINES["laptop"], 0.2, max_step_growth=2.5)
        machine.start_streams(8)
        machine.add("long", 3000)
        return [planned_tokens(machine.step()[0]) for _ in range(50)]

    assert plans() == plans()


def test_nothing_measured_yet():
    machine = Machine(MACHINES["laptop"], max_step_growth=2.5)
    machine.scheduler._times.observe = lambda size, seconds, decodes: None
    machine.start_streams(8)
    tokens, _ = machine.read_prompt(100)
    # 2.5 times eight tokens, as if a token cost the same wherever it is computed.
    assert tokens[0] == 12 and math.fsum(tokens) == 100
