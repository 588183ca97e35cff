"""Requests of models with recurrent layers resume from states that were kept behind few tokens."""

from dataclasses import replace

import pytest

from pagoda.core.kvcache.checkpoints import MOST_SHARE, wanted_positions
from pagoda.core.kvcache.layout import SlabLayout, slab_bytes
from pagoda.core.kvcache.spec import KVGroupSpec, StateGroupSpec

from .fake_runner import EOS, add_request, make_scheduler, run_all, run_step

TEXT = [1 + (7 * i + i * i // 3) % 20 for i in range(4000)]
TURN = [*TEXT[:29], EOS, *TEXT[:10]]  # ends a turn at 30


def hybrid(num_blocks: int = 400, **limits):
    values = {"max_model_len": 4096, "max_num_batched_tokens": 64, **limits}
    return make_scheduler(num_blocks=num_blocks, num_states=2, **values)


def cached_tokens(scheduler, runner, prompt: list[int], **fields) -> int:
    """Run one request alone; the prompt tokens that it found in the cache."""
    add_request(scheduler, "r", prompt, eos_token_ids=[EOS], **fields)
    deltas = run_all(scheduler, runner)["r"]
    (cached,) = [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None]
    return cached


def test_the_same_prompt_resumes_at_its_last_block():
    scheduler, runner = hybrid()
    assert [cached_tokens(scheduler, runner, TEXT[:50]) for _ in range(3)] == [0, 48, 48]
    assert cached_tokens(scheduler, runner, TEXT[:48]) == 0, "its end was never kept"
    assert cached_tokens(scheduler, runner, TEXT[:48]) == 44


def test_the_next_turn_resumes_behind_the_last_end_of_a_turn():
    scheduler, runner = hybrid()
    cached_tokens(scheduler, runner, TURN)
    assert cached_tokens(scheduler, runner, [*TURN[:33], *TEXT[100:140]]) == 28


def test_a_reply_keeps_its_last_state_alone():
    scheduler, runner = hybrid()
    add_request(scheduler, "r", TEXT[:10], max_tokens=300, ignore_eos=True)
    row = None
    while scheduler.has_work():
        run_step(scheduler, runner)
        row = runner.rows.get("r", row)
    group = len(scheduler.kv.groups) - 1
    states = [one for one in scheduler.kv.cached_blocks() if one.group == group]
    assert len(states) == 2, "behind the prompt, and the last one of the reply"
    assert cached_tokens(scheduler, runner, row.tokens) == 256


def test_where_texts_part_a_state_is_kept_from_the_second_on():
    scheduler, runner = hybrid()
    tails = [TEXT[1000 * i : 1000 * i + 60] for i in (1, 2, 3)]
    found = [cached_tokens(scheduler, runner, TEXT[:101] + tail) for tail in tails]
    assert found == [0, 0, 100]


def test_of_long_shared_prefixes_half_is_resumed_by_chance():
    scheduler, runner = hybrid(num_blocks=3000)
    cached_tokens(scheduler, runner, TEXT[:3000])
    assert cached_tokens(scheduler, runner, [*TEXT[:1500], *TEXT[:100]]) == 1024


def test_a_burst_of_equal_prompts_waits_for_the_first():
    scheduler, runner = hybrid()
    for index in range(4):
        add_request(scheduler, f"r{index}", TEXT[:201])
    deltas = run_all(scheduler, runner)
    cached = {name: next(d.num_cached_tokens for d in ds) for name, ds in deltas.items()}
    assert cached == {"r0": 0, "r1": 200, "r2": 200, "r3": 200}


def test_states_that_nobody_uses_take_a_part_of_the_memory_at_most():
    scheduler, runner = hybrid(num_blocks=64)
    kv = scheduler.kv
    for start in range(100):
        cached_tokens(scheduler, runner, TEXT[start : start + 5])
    states = [one for one in kv.cached_blocks() if one.group == 1]
    assert len(states) == int(MOST_SHARE * kv.total_bytes / kv.layout.block_bytes[1])


def test_without_prefix_caching_no_state_is_kept():
    scheduler, runner = hybrid(prefix_caching=False)
    assert [cached_tokens(scheduler, runner, TEXT[:50]) for _ in range(2)] == [0, 0]
    assert not scheduler.kv.cached_blocks()


def test_wanted_positions():
    prompt = [*TEXT[:99], EOS, *TEXT[:1000]]
    assert wanted_positions(prompt, {EOS}, 16, 0) == [96, 512, 1024, 1088]
    assert wanted_positions(prompt, {EOS}, 16, 500) == [96, 496, 512, 1024, 1088]
    assert wanted_positions(TEXT[:16], {EOS}, 16, 0) == []
    assert wanted_positions(TEXT[:17], {EOS}, 16, 0) == [16]


FULL = KVGroupSpec("full", (0,), 1, 32, 16)
SIZES = {
    "equal": ([FULL, replace(FULL, layers=(1,))], 1),
    "divides": ([FULL, replace(FULL, layers=(1, 2, 3, 4))], 4),
    "close": ([replace(FULL, layers=(0,) * 9), replace(FULL, layers=(0,) * 10)], None),
    "state": ([FULL, StateGroupSpec((1,), ((3, 7), (5, 33, 21)), 16)], None),
}


@pytest.mark.parametrize("case", SIZES)
def test_slabs_give_each_group_whole_blocks_and_waste_little(case):
    groups, largest = SIZES[case]
    layout = SlabLayout(groups, 40)
    if largest is not None:
        assert slab_bytes(groups) == largest * FULL.block_bytes
    for group, spec in enumerate(groups):
        seen: set[int] = set()
        for slab in range(40):
            blocks = layout.blocks_of(group, slab)
            assert not seen & set(blocks)
            seen |= set(blocks)
            for block in blocks:
                start = block * spec.block_bytes
                assert slab * layout.slab_bytes <= start
                assert start + spec.block_bytes <= (slab + 1) * layout.slab_bytes
                assert layout.slab_of(group, block) == slab
            used = len(blocks) * spec.block_bytes
            assert slab == 0 or used >= layout.slab_bytes * 15 / 16
        assert 0 not in seen and max(seen) < layout.num_ids(group)


def test_memory_moves_from_one_group_to_another():
    """A window's blocks first fill what full attention then takes."""
    scheduler, runner = make_scheduler(
        windows=(None, 2000), num_layers=(1, 3), num_blocks=40, max_model_len=4096,
        prefix_caching=False,
    )  # fmt: skip
    kv = scheduler.kv
    tables = kv.open("others")
    taken = []
    while (blocks := kv._pools.allocate(1, 1)) is not None:
        taken += blocks
    assert len(taken) == 40 and kv.free_bytes == 0
    assert kv.allocate(tables, 4) is None
    kv._pools.release(1, taken)
    add_request(scheduler, "r", TEXT[:100])
    run_all(scheduler, runner)
    assert kv.free_bytes == kv.total_bytes


def test_a_missing_state_is_told_from_text_that_is_new():
    scheduler, runner = make_scheduler(
        num_states=1, block_size=16, num_blocks=400, max_model_len=4096
    )
    add_request(scheduler, "first", TEXT[:1000], max_tokens=1)
    run_all(scheduler, runner)
    add_request(scheduler, "parts", [*TEXT[:700], *TEXT[:300]], max_tokens=1)
    [delta] = run_all(scheduler, runner)["parts"]
    assert (delta.num_cached_tokens, delta.prefix_miss) == (512, "no_state")
    # Where both parted, a state is kept from now on.
    add_request(scheduler, "again", [*TEXT[:700], *TEXT[5:300]], max_tokens=1)
    [delta] = run_all(scheduler, runner)["again"]
    assert (delta.num_cached_tokens, delta.prefix_miss) == (688, "new")
