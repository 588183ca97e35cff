"""Prompts that share steps: short ones do not wait for long ones, and nobody starves."""

from dataclasses import dataclass
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.core.kvcache.manager import KVCacheManager

from .fake_runner import add_request, make_scheduler, planned_tokens, run_all, run_step
from .machine import MACHINES, Machine

LONG = 2000


@dataclass
class Outcome:
    waits: list[float]
    """Seconds of each prompt, in the order given, from its arrival to its first token."""
    ends: list[float]
    longest_step: float


def play(
    name: str, arrivals: list[tuple[float, int]], num_streams: int = 0, **limits: object
) -> Outcome:
    """Prompts of (seconds, tokens) on a machine that has learned what its steps take."""
    machine = Machine(MACHINES[name], max_step_growth=2.2, **limits)
    if num_streams:
        machine.start_streams(num_streams)
    machine.read_prompt(600)
    todo = sorted((at, index) for index, (at, _) in enumerate(arrivals))
    now, longest_step = 0.0, 0.0
    ends: dict[int, float] = {}
    running: set[int] = set()
    while todo or running:
        if not running:
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            index = todo.pop(0)[1]
            machine.add(f"prompt{index}", arrivals[index][1], max_tokens=1)
            running.add(index)
        seconds = machine.step()[1]
        now += seconds
        longest_step = max(longest_step, seconds)
        for index in [i for i in running if f"prompt{i}" not in machine.scheduler.req_ids]:
            running.remove(index)
            ends[index] = now
    machine.scheduler.check_integrity()
    waits = [ends[index] - at for index, (at, _) in enumerate(arrivals)]
    return Outcome(waits, [ends[index] for index in range(len(arrivals))], longest_step)


@cache
def alone(name: str, length: int, num_streams: int) -> float:
    return play(name, [(0.0, length)], num_streams).waits[0]


machines = st.sampled_from(sorted(MACHINES))
places = st.floats(0.0, 0.9)


@settings(max_examples=25, deadline=None)
@given(
    machines,
    st.sampled_from([0, 4]),
    st.lists(st.tuples(places, st.sampled_from([1, 4, 20, 40])), max_size=4),
)
def test_short_prompts_wait_for_two_steps_and_for_each_other(name, num_streams, shorts):
    whole = alone(name, LONG, num_streams)
    arrivals = [(0.0, LONG), *((place * whole, length) for place, length in shorts)]
    outcome = play(name, arrivals, num_streams)
    for index, (at, length) in enumerate(arrivals[1:], 1):
        together = sum(
            begun < outcome.ends[index] and outcome.ends[i] > at
            for i, (begun, _) in enumerate(arrivals[1:], 1)
        )
        own = 1.3 * together * alone(name, length, num_streams)
        assert outcome.waits[index] <= own + 2 * outcome.longest_step


@settings(max_examples=25, deadline=None)
@given(
    machines,
    st.sampled_from([0, 4]),
    st.lists(st.tuples(places, st.sampled_from([1, 20, 100, 700])), min_size=1, max_size=20),
)
def test_a_long_prompt_takes_no_more_than_1_3_times_its_time(name, num_streams, others):
    """And those who keep coming share a sixth of the time, the shortest first."""
    whole = alone(name, LONG, num_streams)
    arrivals = [(0.0, LONG), *((place * whole, length) for place, length in others)]
    outcome = play(name, arrivals, num_streams)
    step = outcome.longest_step
    assert outcome.waits[0] <= 1.3 * whole + 2 * step
    for index, (at, length) in enumerate(arrivals[1:], 1):
        before = sum(
            alone(name, other, num_streams) + step
            for i, (_, other) in enumerate(arrivals[1:], 1)
            if other <= length and outcome.ends[i] > at
        )
        assert outcome.waits[index] <= 6 * (before + step)


def test_equal_prompts_are_served_in_the_order_of_arrival():
    outcome = play("laptop", [(0.001 * i, 300) for i in range(6)])
    assert outcome.ends == sorted(outcome.ends)


def test_priorities_are_absolute():
    machine = Machine(MACHINES["laptop"], max_step_growth=2.2, policy="priority")
    machine.add("low", 2000, priority=1)
    machine.step()
    machine.add("urgent", 2000, priority=0, max_tokens=1)
    machine.add("short", 4, priority=1)
    while "urgent" in machine.scheduler.req_ids:
        planned = planned_tokens(machine.step()[0])
        # But for the step that ends it, which others fill.
        assert set(planned) == {"urgent"} or "urgent" not in machine.scheduler.req_ids


def test_a_short_prompt_starts_beside_a_long_one_and_ends_first():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, num_blocks=64)
    add_request(scheduler, "long", list(range(100)), max_tokens=1)
    run_step(scheduler, runner)
    add_request(scheduler, "short", [7, 7, 7], max_tokens=1)
    plan, deltas = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"short": 3, "long": 13}
    assert [delta.req_id for delta in deltas] == ["short"]


def waiting_behind_two(**limits: object) -> list[str]:
    """Who runs a step after a second long prompt and a short one have come."""
    values = {"max_num_batched_tokens": 16, "max_num_reqs": 3, **limits}
    scheduler, runner = make_scheduler(prefix_caching=False, **values)
    add_request(scheduler, "long", [1] * 60, max_tokens=1)
    run_step(scheduler, runner)
    add_request(scheduler, "second", [2] * 60, max_tokens=1)
    add_request(scheduler, "short", [3, 3, 3], max_tokens=1)
    planned = planned_tokens(run_step(scheduler, runner)[0])
    assert set(run_all(scheduler, runner)) == {"long", "second", "short"} - (
        {"short"} if "short" in planned else set()
    )
    return sorted(planned)


def test_who_overtakes_leaves_room_for_the_next_in_line():
    assert waiting_behind_two(num_blocks=33) == ["long", "short"]
    assert waiting_behind_two(num_blocks=31) == ["long"], "15 blocks each"
    assert waiting_behind_two(num_blocks=33, max_num_reqs=2) == ["long"]


def test_the_next_turn_of_a_long_chat_is_short():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16)
    chat = list(range(80))
    add_request(scheduler, "chat", chat, max_tokens=1)
    run_all(scheduler, runner)
    add_request(scheduler, "long", [5] * 100, max_tokens=1)
    run_step(scheduler, runner)
    add_request(scheduler, "middle", [6] * 20, max_tokens=1)
    add_request(scheduler, "turn", [*chat, 3, 3], max_tokens=1)
    assert planned_tokens(run_step(scheduler, runner)[0])["turn"] == 2


def test_prompts_that_are_not_split_keep_their_order():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, enable_chunked_prefill=False)
    for name, length in (("first", 12), ("second", 6), ("third", 3)):
        add_request(scheduler, name, [length] * length, max_tokens=1)
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"first": 12}
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"second": 6, "third": 3}


def test_a_step_asks_for_no_prefix_that_it_has_no_time_for(monkeypatch):
    """However many wait: looking up what is cached of each took longer than the rest of a step."""
    machine = Machine(MACHINES["laptop"], max_step_growth=2.2, max_num_reqs=300)
    machine.start_streams(8)
    machine.read_prompt(600)
    for index in range(200):
        machine.add(f"waiting{index}", 600, max_tokens=8)
    asked = []
    match = KVCacheManager.match_prefix
    monkeypatch.setattr(
        KVCacheManager, "match_prefix", lambda *args: asked.append(args) or match(*args)
    )
    for _ in range(5):
        asked.clear()
        machine.step()
        assert len(asked) <= 4
