"""Who reuses whose KV blocks."""

import pytest

from pagoda.core.messages import MediaItem
from tests.plans import shares

from .fake_runner import add_request, make_scheduler, planned_tokens, run_all, run_step

PROMPT = list(range(1, 13))  # Three blocks of four.


def cached_tokens(fields: dict, later: dict, **options: object) -> int:
    """Tokens that a second request finds after a first one."""
    scheduler, runner = make_scheduler(**options)
    add_request(scheduler, "a", **{"prompt": PROMPT, **fields})
    run_all(scheduler, runner)
    add_request(scheduler, "b", **{"prompt": PROMPT, **later})
    return run_all(scheduler, runner)["b"][0].num_cached_tokens


def test_the_last_prompt_token_is_always_computed():
    assert cached_tokens({}, {}) == 8
    assert cached_tokens({}, {"prompt": PROMPT[:11]}) == 8
    assert cached_tokens({}, {"prompt": [*PROMPT, 9]}) == 12
    assert cached_tokens({}, {"prompt": PROMPT[:4]}) == 0


def test_generated_tokens_are_found_by_the_next_turn():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=6)
    output = [token for delta in run_all(scheduler, runner)["a"] for token in delta.token_ids]
    add_request(scheduler, "b", [*PROMPT, *output, 5, 5])
    # 12 + 6 tokens, the last of which was never computed: 17, or four full blocks.
    assert run_all(scheduler, runner)["b"][0].num_cached_tokens == 16


def media(content: str, start: int, length: int = 4) -> dict:
    return {"media": [MediaItem(content, start, length, "")]}


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ({"cache_salt": "x"}, {"cache_salt": "x"}, 8),
        ({"cache_salt": "x"}, {"cache_salt": "y"}, 0),
        ({"cache_salt": "x"}, {}, 0),
        ({"adapter": "x"}, {"adapter": "x"}, 8),
        ({"adapter": "x"}, {"adapter": "y"}, 0),
        ({"adapter": "x"}, {"cache_salt": "x"}, 0),
        (media("cat", 5), media("cat", 5), 8),
        (media("cat", 5), media("dog", 5), 4),  # The first block lies before the image.
        (media("cat", 5), media("cat", 6), 4),
        (media("cat", 0), {}, 0),
        ({"kind": "pool"}, {}, 8),
        ({}, {"kind": "pool"}, 0),  # A pooler may need every position's hidden state.
        ({"prompt_logprobs": 1}, {}, 8),
        ({}, {"prompt_logprobs": 1}, 0),
    ],
)
def test_what_makes_prefixes_equal(first, second, hit):
    assert cached_tokens(first, second) == hit


def test_nothing_is_found_without_prefix_caching():
    assert cached_tokens({}, {}, prefix_caching=False) == 0


def test_preempted_request_reads_the_cache_once_its_prompt_logprobs_are_out():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, prompt_logprobs=1)
    run_step(scheduler, runner)
    scheduler.hold("a", "sleep")
    scheduler.release("a", "sleep")
    plan, [delta] = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"a": 1} and delta.prompt_logprobs is None


def test_equal_prompts_in_flight_are_computed_once():
    """n = 4, or a burst with one system prompt: the others wait for the first one's blocks."""
    scheduler, runner = make_scheduler(max_num_batched_tokens=8)
    for i in range(4):
        add_request(scheduler, f"r{i}", [*PROMPT, 1, i], max_tokens=2)
    add_request(scheduler, "other", [20, 21])
    steps = [run_step(scheduler, runner) for _ in range(3)]
    plans = [planned_tokens(plan) for plan, _ in steps]
    assert plans[0] == {"other": 2, "r0": 6}, "those who wait block nobody"
    assert plans[1] == {"r0": 7, "other": 1}
    assert plans[2] == {"r0": 1, "r1": 2, "r2": 2, "r3": 2, "other": 1}
    cached = {delta.req_id: delta.num_cached_tokens for delta in steps[2][1]}
    assert [cached[f"r{i}"] for i in range(1, 4)] == [12, 12, 12]
    run_all(scheduler, runner)
    assert scheduler.stats().prompt_tokens == 14 + 3 * 2 + 2


def test_waiting_for_a_prefix_ends_when_its_owner_is_gone():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4)
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", PROMPT)
    run_step(scheduler, runner)
    scheduler.abort(["a"])
    plan, _ = run_step(scheduler, runner)
    assert planned_tokens(plan) == {"b": 4}
    assert shares(plan)[0].num_computed_tokens == 4, "what the owner finished is used"


def test_waiting_for_a_prefix_ends_when_its_owner_is_held():
    scheduler, runner = make_scheduler(max_num_batched_tokens=4)
    add_request(scheduler, "a", PROMPT)
    add_request(scheduler, "b", PROMPT)
    run_step(scheduler, runner)
    scheduler.hold("a", "sleep")
    assert planned_tokens(run_step(scheduler, runner)[0]) == {"b": 4}


def test_shared_blocks_count_once_when_the_pool_is_small():
    scheduler, runner = make_scheduler(num_blocks=8, max_model_len=16)
    for i in range(4):
        add_request(scheduler, f"r{i}", [*PROMPT, i], max_tokens=2)
    run_step(scheduler, runner)
    run_step(scheduler, runner)
    assert scheduler.stats().num_running == 2  # One finished; headroom keeps the last out.
    assert len(run_all(scheduler, runner)) == 3


def test_sliding_window_groups_share_their_last_window():
    scheduler, runner = make_scheduler(windows=(None, 5), num_blocks=40)
    add_request(scheduler, "a", PROMPT, max_tokens=1)
    run_all(scheduler, runner)
    add_request(scheduler, "b", [*PROMPT, 1], max_tokens=1)
    plan, [delta] = run_step(scheduler, runner)
    assert delta.num_cached_tokens == 12
    full, sliding = shares(plan)[0].new_block_ids
    assert 0 not in full and sliding[:2] == [0, 0] and 0 not in sliding[2:]


def test_sliding_window_groups_free_what_they_passed():
    scheduler, runner = make_scheduler(windows=(None, 5), num_blocks=40, prefix_caching=False)
    add_request(scheduler, "a", PROMPT, max_tokens=13)
    peak = 0
    while scheduler.has_work():
        run_step(scheduler, runner)
        stats = scheduler.stats()
        peak = max(peak, stats.blocks_total - stats.blocks_free)
    # 24 computed tokens are 6 blocks; a window of 5 spans 2, and one more at most is in use.
    assert peak <= 6 + 3


def test_reset_forgets_only_what_nobody_uses():
    scheduler, runner = make_scheduler()
    add_request(scheduler, "a", PROMPT, max_tokens=3)
    run_step(scheduler, runner)
    assert not scheduler.reset_prefix_cache(), "a request still uses its blocks"
    run_all(scheduler, runner)
    assert scheduler.reset_prefix_cache()
    add_request(scheduler, "b", PROMPT)
    assert run_all(scheduler, runner)["b"][0].num_cached_tokens == 0
