"""The same request gives the same tokens, however its steps are cut, mixed or taken back."""

import random

import pytest

from pagoda.runtime.steps.warm_up import first_plans
from tests.plans import shares

NUM_TOKENS = 12
# One per way through the sampler: greedy, plain draw, limits, penalties, all together.
KINDS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.8, "seed": 1},
    "limits": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 2},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 1.5},
    "all": {
        "temperature": 1.2,
        "top_p": 0.95,
        "top_n_sigma": 2.5,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.1,
        "logit_bias": {5: 4.0, 9: -50.0},
        "bad_word_ids": [[5], [7, 8]],
        "min_tokens": 5,
        "eos_token_ids": [11],
        "seed": 3,
    },
    "unseeded": {"temperature": 1.0},
    "chain": {
        "temperature": 0.9,
        "dry_multiplier": 0.8,
        "dry_allowed_length": 0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.01,
        "typical_p": 0.95,
        "dynatemp_range": 0.3,
        "presence_penalty": 0.5,
        "seed": 4,
    },
    "order": {
        "samplers": ["top_p", "temperature", "penalties"],
        "temperature": 1.5,
        "top_p": 0.7,
        "repetition_penalty": 1.5,
        "seed": 5,
    },
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0, "seed": 6},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0, "seed": 6, "frequency_penalty": 0.5},
}


@pytest.fixture
def requests(make_request):
    return {
        name: make_request(name, 15 + 7 * i, **sampling)
        for i, (name, sampling) in enumerate(KINDS.items())
    }


@pytest.fixture
def alone(requests, make_driver):
    """Every request in a runner of its own, its prompt in one step."""
    tokens = {}
    for name, request in requests.items():
        driver = make_driver()
        driver.add(request)
        driver.finish([name], NUM_TOKENS)
        tokens[name] = driver.tokens[name]
    return tokens


def test_greedy_follows_the_largest_logit(alone, requests, model):
    token_ids = list(requests["greedy"].prompt_token_ids)
    for token in alone["greedy"]:
        assert token == int(model.logits(token_ids)[-1].argmax())
        token_ids.append(token)


def test_kinds_differ(alone):
    assert len({tuple(tokens) for tokens in alone.values()}) == len(KINDS)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunk_size_changes_nothing(chunk, alone, requests, driver):
    driver.add(*requests.values())
    driver.finish(list(requests), NUM_TOKENS, chunk)
    assert driver.tokens == alone


def test_random_mixes_and_preemption_change_nothing(alone, requests, driver):
    choose = random.Random(3)
    driver.add(*requests.values())
    while left := [name for name in requests if len(driver.tokens[name]) < NUM_TOKENS]:
        if choose.random() < 0.2:
            driver.preempt(choose.choice(left))
        chosen = choose.sample(left, choose.randint(1, len(left)))
        driver.step({name: choose.choice([1, 3, 30]) for name in chosen})
    assert driver.tokens == alone


def test_plans_need_no_results(alone, requests, driver):
    """All plans are made before the first is executed: later than any scheduler would be."""
    driver.add(*requests.values())
    # Prompts of up to 80 tokens take 4 steps; the rest are decode steps.
    plans = [driver.plan(dict.fromkeys(requests, 20)) for _ in range(NUM_TOKENS + 3)]
    for plan in plans:
        driver.execute(plan)
    assert {name: tokens[:NUM_TOKENS] for name, tokens in driver.tokens.items()} == alone


@pytest.mark.parametrize("right", [0, 1, 3])
def test_drafts_change_nothing(right, alone, requests, driver):
    """Drafts of which the first `right` are what the model will say, and the others are not."""
    driver.add(*requests.values())
    lengths = set()
    while left := [name for name in requests if len(driver.tokens[name]) < NUM_TOKENS]:
        drafts = {}
        for name in left:
            done = len(driver.tokens[name])
            good = alone[name][done : done + right]
            drafts[name] = [*good, *((token + 1) % 299 for token in alone[name][done + right :])]
        results = driver.step(dict.fromkeys(left, 64), drafts)
        lengths |= {len(result.token_ids) for result in results.values()}
    assert {name: tokens[:NUM_TOKENS] for name, tokens in driver.tokens.items()} == alone
    assert max(lengths) == right + 1


def test_rollback_takes_tokens_back(alone, requests, driver):
    """A plan that samples earlier than the row's end forgets what came after."""
    driver.add(*requests.values())
    driver.finish(list(requests), 8)
    for name, request in requests.items():
        driver.tokens[name] = driver.tokens[name][:3]
        driver.known[name] = len(request.prompt_token_ids) + 3
        driver.computed[name] = driver.known[name] - 2
    driver.finish(list(requests), NUM_TOKENS)
    assert driver.tokens == alone


def test_rows_are_reused_and_grow(requests, make_driver, make_request, alone):
    """More requests live (some preempted) than run at once, then rows pass to others."""
    driver = make_driver(max_num_reqs=1)
    others = [make_request(f"other-{i}", 9, temperature=0.7) for i in range(9)]
    driver.add(*others)
    driver.finish([request.req_id for request in others], 2)
    for request in others:
        driver.preempt(request.req_id)
    for request in others:
        driver.free(request.req_id)
    driver.add(*requests.values())
    driver.finish(list(requests), NUM_TOKENS)
    assert {name: driver.tokens[name] for name in requests} == alone
    assert len(driver.runner.states) == len(requests)


def test_unseeded_requests_follow_the_engine_seed(requests, make_driver, alone):
    tokens = {}
    for seed in (0, 1):
        driver = make_driver(seed=seed)
        driver.add(requests["unseeded"], requests["plain"])
        driver.finish(["unseeded", "plain"], NUM_TOKENS)
        tokens[seed] = driver.tokens
    assert tokens[0]["unseeded"] == alone["unseeded"] != tokens[1]["unseeded"]
    assert tokens[0]["plain"] == tokens[1]["plain"] == alone["plain"]


def test_decode_batch_holds_one_row_per_request(requests, driver, model):
    driver.add(*requests.values())
    driver.finish(list(requests), 1)
    driver.step(dict.fromkeys(requests, 1))
    batch = model.steps[-1]
    lengths = [len(request.prompt_token_ids) + 1 for request in requests.values()]
    assert batch.kv_lens.tolist() == lengths
    assert batch.positions.tolist() == [length - 1 for length in lengths]
    assert batch.query_start.tolist() == list(range(len(requests) + 1))
    assert (batch.max_query_len, batch.max_kv_len) == (1, max(lengths))
    assert batch.layer_group == [0, 1]


def test_warm_up_leaves_no_trace(alone, requests, driver):
    driver.runner.warm_up()
    assert len(driver.runner.states) == 0
    driver.add(requests["all"])
    driver.finish(["all"], NUM_TOKENS)
    assert driver.tokens["all"] == alone["all"]
    assert driver.runner.times.steps == NUM_TOKENS


def test_warm_up_of_a_gpu_meets_the_sizes_that_kernels_are_compiled_for(driver):
    longest, plans = first_plans(driver.runner.spec, [16, 4], 65, 512)
    steps = [shares(plan)[0] for plan in plans if plan.req_ids]
    sizes = [(step.num_computed_tokens, step.num_tokens) for step in steps]
    assert sizes == [(0, 3), (3, 1), (0, 32), (32, 1), (0, 64), (64, 1)] and longest == 64
    assert steps[4].new_block_ids == [[0] * 5, [0] * 17]  # room for the token behind it
    assert sum(plan.freed == [0] for plan in plans) == 3
    assert first_plans(driver.runner.spec, [16], 65, 63)[0] == 32
    assert first_plans(driver.runner.spec, [16], 65, 0)[0] == 15
