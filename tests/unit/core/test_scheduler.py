from dataclasses import dataclass, replace

import msgspec
import pytest

from pagoda.base.errors import ConfigError, ContextLengthError, RequestError
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from pagoda.planner.memory.plan import MemoryPlan
from tests.plans import shares

from .fake_runner import (
    add_request,
    expected_output,
    make_groups,
    make_scheduler,
    planned_tokens,
    run_all,
    run_step,
    tokens_of,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def expected(prompt: list[int], **sampling: object) -> list[int]:
    params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **sampling})
    return expected_output(AddRequest(req_id="", prompt_token_ids=prompt, sampling=params), 128)


def test_request_runs_from_prompt_to_length():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    plan, deltas = run_step(scheduler, runner)
    assert [row.req_id for row in plan.new_rows] == ["a"]
    assert planned_tokens(plan) == {"a": 10} and shares(plan)[0].samples
    assert deltas[0].num_cached_tokens == 0
    plan, _ = run_step(scheduler, runner)
    assert plan.new_rows == [] and planned_tokens(plan) == {"a": 1}
    rest = run_all(scheduler, runner)["a"]
    assert rest[-1].finish_reason == "length"
    assert [d.num_cached_tokens for d in rest] == [None, None]
    assert scheduler.schedule() is None and not scheduler.has_work()


def test_outputs_equal_those_without_batching():
    prompts = {f"r{i}": [i, *PROMPT[: i + 1]] for i in range(8)}
    scheduler, runner = make_scheduler(max_num_batched_tokens=7, max_num_reqs=3)
    for req_id, prompt in prompts.items():
        add_request(scheduler, req_id, prompt)
    deltas = run_all(scheduler, runner)
    for req_id, prompt in prompts.items():
        assert tokens_of(deltas[req_id]) == expected(prompt)


def test_prompt_is_computed_in_chunks_and_sampled_at_its_end():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4)
    add_request(scheduler, "a", PROMPT)
    plans = [run_step(scheduler, runner) for _ in range(3)]
    assert [planned_tokens(plan)["a"] for plan, _ in plans] == [4, 4, 2]
    assert [shares(plan)[0].samples for plan, _ in plans] == [False, False, True]
    assert [len(deltas) for _, deltas in plans] == [0, 0, 1]


def test_long_prefill_threshold_leaves_budget_to_others():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=6)
    add_request(scheduler, "long", PROMPT + PROMPT)
    add_request(scheduler, "short", [7, 7, 7])
    plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"long": 6, "short": 3}


def test_generating_requests_keep_a_token_each_beside_a_long_prompt():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4, max_model_len=64)
    add_request(scheduler, "long", PROMPT * 4)
    for i in range(3):
        add_request(scheduler, f"g{i}", [i], max_tokens=30)
    scheduler.hold("long", "adapter")
    run_step(scheduler, runner)
    scheduler.release("long", "adapter")
    run_step(scheduler, runner)
    plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"long": 1, "g0": 1, "g1": 1, "g2": 1}


def test_without_chunking_a_prompt_waits_for_a_whole_budget():
    scheduler, runner = make_scheduler(max_num_batched_tokens=12, enable_chunked_prefill=False)
    add_request(scheduler, "a", PROMPT[:4], max_tokens=2)
    add_request(scheduler, "b", PROMPT[::-1], max_tokens=1)
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"a": 4}
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"a": 1, "b": 10}


def test_without_chunking_a_prompt_over_the_budget_is_split_all_the_same():
    scheduler, runner = make_scheduler(max_num_batched_tokens=6, enable_chunked_prefill=False)
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", PROMPT[:6])
    assert tokens_of(run_all(scheduler, runner)["a"]) == expected(PROMPT)


def test_priority_serves_lower_values_first_then_arrival():
    scheduler, runner = make_scheduler(policy="priority", max_num_reqs=1)
    for req_id, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        add_request(scheduler, req_id, [priority + 9], priority=priority, max_tokens=1)
    order = list(run_all(scheduler, runner))
    assert order == ["urgent", "first", "second", "late"]


def test_priority_preempts_the_worst():
    scheduler, runner = make_scheduler(policy="priority", num_blocks=5, max_model_len=16)
    add_request(scheduler, "low", [1] * 7, priority=2, max_tokens=9)
    run_step(scheduler, runner)
    add_request(scheduler, "high", [2] * 7, priority=1, max_tokens=9)
    resumed, finished = [], []
    while scheduler.has_work():
        plan, deltas = run_step(scheduler, runner)
        resumed += [row.req_id for row in plan.new_rows if row.request is None]
        finished += [delta.req_id for delta in deltas if delta.finish_reason]
    assert set(resumed) == {"low"}
    assert finished == ["high", "low"]


def test_fcfs_preempts_the_latest_and_resumes_it_with_the_same_output():
    scheduler, runner = make_scheduler(num_blocks=6, max_model_len=20, prefix_caching=False)
    add_request(scheduler, "a", [1] * 5, max_tokens=15)
    add_request(scheduler, "b", [2] * 5, max_tokens=15)
    plans, outputs = [], {"a": [], "b": []}
    while scheduler.has_work():
        plan, deltas = run_step(scheduler, runner)
        plans.append(plan)
        for delta in deltas:
            outputs[delta.req_id] += delta.token_ids
    resumed = [row for plan in plans for row in plan.new_rows if row.request is None]
    assert {row.req_id for row in resumed} == {"b"}
    assert outputs["a"] == expected([1] * 5, max_tokens=15)
    assert outputs["b"] == expected([2] * 5, max_tokens=15)
    # Recomputed prompt tokens do not count twice.
    assert scheduler.stats().prompt_tokens == 10


def test_nobody_is_admitted_in_a_step_that_preempted():
    scheduler, runner = make_scheduler(num_blocks=4, max_model_len=16, prefix_caching=False)
    add_request(scheduler, "a", [1] * 6, max_tokens=10)
    add_request(scheduler, "b", [2] * 3, max_tokens=10)
    for _ in range(3):
        run_step(scheduler, runner)
    add_request(scheduler, "c", [3], max_tokens=1)
    while scheduler.stats().num_preemptions == 0:
        plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"a": 1} and plan.new_rows == []


def test_small_request_behind_one_that_does_not_fit_waits():
    scheduler, runner = make_scheduler(num_blocks=6, max_model_len=24)
    add_request(scheduler, "a", [1] * 12, max_tokens=8)
    run_step(scheduler, runner)
    add_request(scheduler, "large", [2] * 16)
    add_request(scheduler, "small", [3])
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"a": 1}
    order = list(run_all(scheduler, runner))
    assert order == ["a", "large", "small"]


def test_request_that_can_never_fit_is_refused_with_numbers():
    scheduler, _ = make_scheduler(num_blocks=4, max_model_len=128)
    with pytest.raises(RequestError, match=r"640 B of KV cache.*10 prompt.*8 gen.*are 512 B"):
        add_request(scheduler, "a", PROMPT, max_tokens=8)
    add_request(scheduler, "a", PROMPT, max_tokens=7)  # The last token needs no KV.
    assert len(scheduler.req_ids) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt_token_ids": [1, -1]}, "prompt"),
        ({"prompt_token_ids": [2**31]}, "prompt"),
        ({"prompt_token_ids": [1] * 128}, "prompt"),
        ({"prompt_token_ids": [1] * 129, "kind": "pool"}, "prompt"),
        ({"prompt_token_ids": [1], "kind": "sing"}, "kind"),
    ],
)
def test_bad_messages_are_refused(fields, param):
    scheduler, _ = make_scheduler()
    with pytest.raises(RequestError) as caught:
        scheduler.add(AddRequest(req_id="a", **fields))
    assert caught.value.param == param
    assert isinstance(caught.value, ContextLengthError) == (len(fields["prompt_token_ids"]) > 99)
    assert not scheduler.req_ids


def test_id_in_use_is_refused_and_the_first_request_goes_on():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    with pytest.raises(RequestError, match="'a'"):
        add_request(scheduler, "a", [1])
    assert tokens_of(run_all(scheduler, runner)["a"]) == expected(PROMPT)


def test_stops_at_eos_stop_ids_and_the_context():
    full = expected(PROMPT, max_tokens=20)
    ids = {"eos_token_ids": [full[2]], "ignore_eos": False}
    cut = full[: full.index(full[2]) + 1]
    cases = {
        "eos": (ids, cut, "stop", None),
        "stop id": ({"stop_token_ids": [full[2]]}, cut, "stop", full[2]),
        "both": ({**ids, "stop_token_ids": [full[2]]}, cut, "stop", None),
        "ignored": ({**ids, "ignore_eos": True}, full, "length", None),
        "none": ({"max_tokens": None}, None, "length", None),
    }
    scheduler, runner = make_scheduler(max_model_len=32, num_blocks=99)
    for name, (fields, *_) in cases.items():
        add_request(scheduler, name, PROMPT, **{"max_tokens": 20, **fields})
    deltas = run_all(scheduler, runner)
    for name, (_, output, finish_reason, stop_reason) in cases.items():
        last = deltas[name][-1]
        assert (last.finish_reason, last.stop_reason) == (finish_reason, stop_reason), name
        assert output is None or tokens_of(deltas[name]) == output, name
    assert len(tokens_of(deltas["none"])) == 32 - len(PROMPT)


def test_min_tokens_holds_back_stops():
    full = expected(PROMPT, max_tokens=20)
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=20, min_tokens=3, stop_token_ids=[full[0]])
    output = tokens_of(run_all(scheduler, runner)["a"])
    assert len(output) >= 3 and output == full[: len(output)]


def test_max_tokens_zero_scores_the_prompt_only():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4)
    add_request(scheduler, "a", PROMPT, max_tokens=0, prompt_logprobs=1)
    deltas = run_all(scheduler, runner)["a"]
    entries = [entry for delta in deltas for entry in delta.prompt_logprobs or ()]
    assert [entry and entry.token_id for entry in entries] == [None, *PROMPT[1:]]
    assert deltas[-1].finish_reason == "length" and tokens_of(deltas) == []


def test_prompt_may_fill_the_context_when_nothing_is_generated():
    scheduler, runner = make_scheduler(max_model_len=10)
    add_request(scheduler, "a", PROMPT, max_tokens=0)
    add_request(scheduler, "b", PROMPT, kind="pool")
    deltas = run_all(scheduler, runner)
    assert deltas["a"][-1].finish_reason == "length"
    assert deltas["b"][-1].finish_reason == "stop"


def test_pooling_ends_with_the_embedding_of_the_whole_prompt():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4)
    add_request(scheduler, "a", PROMPT, kind="pool")
    plans = [run_step(scheduler, runner) for _ in range(3)]
    assert [shares(plan)[0].samples for plan, _ in plans] == [False, False, True]
    [delta] = plans[-1][1]
    assert delta.embedding is not None and delta.finish_reason == "stop"
    assert not scheduler.has_work()


def test_error_ends_only_its_request():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", [1, 2])
    runner.broken.add("a")
    deltas = run_all(scheduler, runner)
    assert deltas["a"][-1].error == "broken" and deltas["a"][-1].finish_reason == "error"
    assert tokens_of(deltas["b"]) == expected([1, 2])


def test_abort_frees_blocks_and_reports_the_row_in_the_next_plan():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", PROMPT)
    run_step(scheduler, runner)
    deltas = scheduler.abort(["a", "b", "a", "unknown"])
    assert [(delta.req_id, delta.finish_reason) for delta in deltas] == [
        ("a", "abort"), ("b", "abort"),
    ]  # fmt: skip
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total
    assert scheduler.schedule() is None
    add_request(scheduler, "a", [1])  # The id is free again; its old row goes first.
    plan, _ = run_step(scheduler, runner)
    assert plan.freed == [0]  # b never had a row: it was waiting for a's blocks
    assert [row.req_id for row in plan.new_rows] == ["a"]


def test_logprobs_travel_with_their_tokens():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, logprobs=1)
    for delta in run_all(scheduler, runner)["a"]:
        assert [entry.token_id for entry in delta.logprobs] == delta.token_ids


def test_stats_count_what_happened():
    scheduler, runner = make_scheduler(num_blocks=20)
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", [8, 8])
    scheduler.hold("b", "grammar")
    run_step(scheduler, runner)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (1, 1, 1)
    assert (stats.blocks_total, stats.blocks_free) == (20, 17)
    assert (stats.prompt_tokens, stats.generation_tokens) == (10, 1)
    scheduler.release("b", "grammar")
    run_all(scheduler, runner)
    assert scheduler.stats().generation_tokens == 8


@pytest.mark.parametrize(
    "limits", [{"max_num_reqs": 0}, {"max_num_batched_tokens": 0}, {"policy": "lottery"}]
)
def test_limits_that_serve_nobody_are_refused(limits):
    with pytest.raises(ConfigError):
        make_scheduler(**limits)


def test_deltas_survive_the_wire():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=1, cache_salt="\ud800")
    [delta] = run_all(scheduler, runner)["a"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=RequestDelta) == delta


def test_steps_are_counted_by_their_tokens():
    scheduler, runner = make_scheduler(max_num_batched_tokens=9)
    add_request(scheduler, "a", PROMPT, max_tokens=3)
    add_request(scheduler, "b", PROMPT, max_tokens=1)
    sizes, requests = [], 0
    while scheduler.has_work():
        plan, _ = run_step(scheduler, runner)
        sizes.append(sum(planned_tokens(plan).values()))
        requests += len(plan.req_ids)
    stats = scheduler.stats()
    assert stats.computed_tokens == sum(sizes) and stats.step_requests == requests > len(sizes)
    assert stats.longest_request == len(PROMPT) + 3
    # At most 1 token, at most 8, at most 16.
    counts = [sum(low < size <= high for size in sizes) for low, high in ((0, 1), (1, 8), (8, 16))]
    assert stats.steps_by_tokens[:3] == counts and sum(stats.steps_by_tokens) == len(sizes)
    assert all(counts[index] for index in (0, 2))


def test_requests_that_wait_for_something_else_are_told_apart():
    scheduler, runner = make_scheduler(max_num_reqs=1)
    for req_id in ("a", "b", "c"):
        add_request(scheduler, req_id, PROMPT)
    scheduler.hold("c", "grammar")
    run_step(scheduler, runner)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_held) == (1, 2, 1)


@pytest.mark.parametrize(
    ("windows", "num_states"), [((None,), 0), ((None, 6), 0), ((None, 3, 10), 0), ((None,), 2)]
)
def test_as_many_requests_run_at_once_as_were_planned(windows, num_states):
    """Behind windows requests keep what they see; only what is being computed is kept besides."""
    plan = MemoryPlan(
        weights=0, activations=0, process=0, max_chunk=64,
        groups=tuple(make_groups(*windows, num_states=num_states)),
    )  # fmt: skip
    slabs = plan.slabs_for(128, requests=6)
    scheduler, runner = make_scheduler(
        windows=windows, num_states=num_states, num_blocks=slabs - 1, prefix_caching=False
    )
    for i in range(6):
        add_request(scheduler, f"r{i}", [*range(98), i], max_tokens=29)
    most = 0
    while scheduler.has_work():
        run_step(scheduler, runner)
        most = max(most, scheduler.stats().num_running)
    assert most == 6 and scheduler.stats().num_preemptions == 0
    assert replace(plan, num_slabs=slabs, max_model_len=128).concurrency >= 6


@dataclass(eq=False)
class Asking(Speculator):
    """Verifies nothing, and has the runner guess."""

    def propose(self, *_):
        self.num_drafts = 3


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_who_is_to_be_guessed_for_gets_the_next_block_in_time(windows):
    """A guess is computed in front of the step that computes its token."""
    speculator = Asking(DraftedProposer(), SpeculationLimits(3))
    scheduler, runner = make_scheduler(windows=windows, speculator=speculator)
    for req_id, length in (("a", 6), ("b", 8), ("c", 11)):
        add_request(scheduler, req_id, PROMPT[:1] * length, max_tokens=20)
    rooms = {}
    while scheduler.has_work():
        plan, deltas = run_step(scheduler, runner)
        for req in scheduler._running:
            rooms[req.req_id] = req.tables.capacity - req.num_computed_tokens
            assert rooms[req.req_id] >= min(3, req.compute_limit - req.num_computed_tokens)
        scheduler.check_integrity()
    assert rooms.keys() == {"a", "b", "c"}


def test_nobody_gives_way_to_guesses():
    """Two requests fill the cache to the last block."""
    speculator = Asking(DraftedProposer(), SpeculationLimits(3))
    scheduler, runner = make_scheduler(num_blocks=6, speculator=speculator)
    for req_id in "ab":
        add_request(scheduler, req_id, PROMPT[:8], max_tokens=5)
    deltas = run_all(scheduler, runner)
    assert [tokens_of(deltas[req_id]) for req_id in "ab"] == 2 * [
        expected(PROMPT[:8], max_tokens=5)
    ]
    assert not scheduler.stats().num_preemptions
