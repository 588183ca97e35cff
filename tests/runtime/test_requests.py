"""What single requests ask for, and what happens when one of them goes wrong."""

import math
import mmap

import numpy as np
import pytest
import torch

from pagoda.core.plan import NewRow
from tests.plans import Planned, plan_of

POISON = 299
VOCAB = 300


@pytest.fixture
def healthy(make_request, make_driver):
    """Two requests and what they generate when nobody disturbs them."""
    requests = [make_request("a", temperature=0.0), make_request("b", temperature=0.9, seed=4)]
    driver = make_driver()
    driver.add(*requests)
    driver.finish(["a", "b"], 6)
    return requests, driver.tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": [1, POISON, 2]}, "not a number"),
        ({"prompt_token_ids": [1, POISON, 2], "kind": "pool"}, "not a number"),
        (
            {"prompt_token_ids": [1, POISON, 2], "top_p": 0.9, "frequency_penalty": 1},
            "not a number",
        ),
        ({"prompt_token_ids": [1, POISON, 2], "prompt_logprobs": 1}, "not a number"),
        ({"prompt_token_ids": [1, 300]}, "token id 300; this model's ids go from 0 to 299"),
        ({"prompt_token_ids": [-1]}, "prompt holds token id -1"),
        ({"prompt_token_ids": []}, "no tokens"),
        ({"prompt_token_ids": [1] * 257}, "257 tokens, but the context is 256"),
        ({"allowed_token_ids": [3, 4000]}, "allowed_token_ids holds token id 4000"),
        ({"logit_bias": {300: 1.0}}, "logit_bias holds token id 300"),
        ({"allowed_token_ids": [3], "bad_word_ids": [[3]]}, "No token is left"),
    ],
)
def test_a_fault_stays_with_its_request(changes, message, healthy, make_request, driver):
    requests, expected = healthy
    bad = make_request("bad", **changes)
    driver.add(requests[0], bad, requests[1])
    first = driver.step(dict.fromkeys(["a", "bad", "b"], 300))
    assert message in first["bad"].error
    assert first["bad"].bad_request == (message != "not a number")
    assert not first["bad"].token_ids and first["bad"].embedding is None
    # The scheduler hears of it one step late.
    assert message in driver.step(dict.fromkeys(["a", "bad", "b"], 1))["bad"].error
    driver.free("bad")
    driver.finish(["a", "b"], 6)
    assert {name: driver.tokens[name] for name in "ab"} == expected
    assert len(driver.runner.states) == 2 and not driver.runner.states.faults


def test_freed_blocks_of_a_poisoned_request_are_clean_for_the_next(healthy, make_request, driver):
    requests, expected = healthy
    driver.add(make_request("bad", prompt_token_ids=[POISON] * 40))
    driver.step({"bad": 64})
    driver.free("bad")
    driver.add(*requests)
    driver.finish(["a", "b"], 6)
    assert {name: driver.tokens[name] for name in "ab"} == expected


def test_request_freed_while_in_flight(healthy, driver):
    """A plan made before the end of a request was known is still executed."""
    requests, expected = healthy
    driver.add(*requests)
    driver.finish(["a", "b"], 3)
    late = driver.plan({"a": 1, "b": 1})
    driver.free("a")
    after = driver.plan({"b": 1})
    assert len(driver.execute(late)["a"].token_ids) == 1
    driver.execute(after)
    assert driver.tokens["b"] == expected["b"][:5]
    assert len(driver.runner.states) == 1
    driver.freed.append(99)
    driver.step({"b": 1})
    assert driver.tokens["b"] == expected["b"]


@pytest.mark.parametrize(
    "changes",
    [
        {"row": 3},
        {"num_tokens": 40},
        {"num_computed_tokens": 19, "num_tokens": 2},
        {"num_tokens": 5},
        {"num_tokens": 20, "new_block_ids": [[1], [1]]},
        {"num_tokens": 0},
    ],
)
def test_a_plan_that_does_not_fit_is_that_requests_error(changes, make_request, driver):
    request = make_request("a")
    blocks = [[1, 2], [1, 2, 3, 4, 5]]
    fields = {"req_id": "a", "num_computed_tokens": 0, "num_tokens": 20, "new_block_ids": blocks}
    planned = Planned(**(fields | changes))
    plan = plan_of(0, [planned], [NewRow(row=0, request=request, req_id="a")])
    (result,) = driver.runner.execute(plan).results
    assert result.error and not result.token_ids


def test_logprobs_are_raw(make_request, driver, model):
    """Of the unchanged logits, whatever bias, penalties and temperature do."""
    request = make_request(
        "a", temperature=0.5, logit_bias={3: 500.0}, repetition_penalty=2.0, logprobs=4, seed=1
    )
    plain = make_request("b", temperature=0.0, logprobs=0)
    whole = make_request("c", temperature=0.0, logprobs=-1)
    driver.add(request, plain, whole)
    driver.finish(["a", "b", "c"], 5, chunk=7)
    for req, top in ((request, 4), (plain, 0), (whole, VOCAB)):
        token_ids = [*req.prompt_token_ids, *driver.tokens[req.req_id]]
        expected = model.logits(token_ids).double().log_softmax(-1)[len(req.prompt_token_ids) - 1 :]
        entries = [e for r in driver.results[req.req_id] for e in r.logprobs or ()]
        assert [entry.token_id for entry in entries] == driver.tokens[req.req_id]
        for entry, row in zip(entries, expected, strict=False):
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
            assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
            assert entry.top_ids == row.argsort(descending=True)[:top].tolist()
    assert driver.tokens["a"] == [3] * 5


def test_logprobs_of_the_draw(make_request, driver, model):
    """After bias, temperature and top-k, beside rows that report raw ones or none."""
    drawn = make_request(
        "a", temperature=0.5, top_k=3, logit_bias={3: -500.0}, logprobs=4, seed=1,
        logprobs_after_sampling=True,
    )  # fmt: skip
    greedy = make_request("b", temperature=0.0, logprobs=2, logprobs_after_sampling=True)
    raw = make_request("c", temperature=0.5, top_k=3, logprobs=4, seed=1)
    none = make_request("d", temperature=0.5, logprobs_after_sampling=True)
    driver.add(drawn, greedy, raw, none)
    driver.finish(["a", "b", "c", "d"], 5, chunk=64)
    found = {name: [e for r in driver.results[name] for e in r.logprobs or ()] for name in "abcd"}
    assert [len(entries) for entries in found.values()] == [5, 5, 5, 0]
    token_ids = [*drawn.prompt_token_ids, *driver.tokens["a"]]
    logits = model.logits(token_ids).double()[len(drawn.prompt_token_ids) - 1 :]
    logits[:, 3] -= 500
    for entry, row in zip(found["a"], logits, strict=False):
        best = row.argsort(descending=True)[:4]
        expected = (row[best[:3]] / 0.5).log_softmax(-1).tolist()
        assert entry.top_ids == best.tolist() and entry.token_id in entry.top_ids[:3]
        assert entry.top_logprobs == pytest.approx([*expected, -math.inf], abs=1e-4)
        assert entry.logprob == entry.top_logprobs[entry.top_ids.index(entry.token_id)]
    assert all(e.logprob == 0 and e.top_logprobs == [0, -math.inf] for e in found["b"])
    assert all(math.isfinite(x) for e in found["c"] for x in e.top_logprobs)


def test_logprobs_of_accepted_drafts(make_request, driver, make_driver):
    request = make_request("a", temperature=0.0, logprobs=2)
    plain = make_driver()
    plain.add(request)
    plain.finish(["a"], 4)
    driver.add(request)
    driver.step({"a": 64}, {"a": plain.tokens["a"][:3]})
    (result,) = driver.results["a"]
    expected = [entry for r in plain.results["a"] for entry in r.logprobs]
    assert [e.token_id for e in result.logprobs] == plain.tokens["a"]
    for one, other in zip(result.logprobs, expected, strict=True):
        assert one.top_ids == other.top_ids
        assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prompt_logprobs_once_per_token(chunk, make_request, driver, model):
    """Over chunks, and with a preemption in the middle of the prompt and one after it."""
    request = make_request("a", 30, prompt_logprobs=2, temperature=0.0)
    other = make_request("b", 25)
    driver.add(request, other)
    for _ in range(3):
        driver.step({"a": chunk, "b": chunk})
    driver.preempt("a")
    driver.finish(["a", "b"], 2, chunk)
    driver.preempt("a")
    driver.finish(["a"], 3, chunk)
    entries = [e for r in driver.results["a"] for e in r.prompt_logprobs or ()]
    assert all(r.prompt_logprobs is None for r in driver.results["b"])
    expected = model.logits(request.prompt_token_ids).double().log_softmax(-1)
    assert entries[0] is None and len(entries) == 30
    for position, entry in enumerate(entries[1:]):
        token = request.prompt_token_ids[position + 1]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[position, token].item(), abs=1e-4)
        assert entry.top_ids == expected[position].argsort(descending=True)[:2].tolist()


@pytest.mark.parametrize("chunk", [7, 64])
def test_pooling_is_the_last_hidden_state(chunk, make_request, driver, model):
    driver.add(make_request("text", 20), make_request("pool", 30, kind="pool"))
    results = [driver.step({"text": chunk, "pool": chunk}) for _ in range(-(-30 // chunk))]
    assert all(result["pool"].embedding is None for result in results[:-1])
    embedding = np.frombuffer(results[-1]["pool"].embedding, np.float32)
    assert not results[-1]["pool"].token_ids
    batch = model.steps[-1]
    expected = model.forward(batch)[-1].float()
    np.testing.assert_allclose(embedding, expected.numpy(), atol=1e-6)


def test_min_tokens_counts_output_only(make_request, driver, make_driver):
    free = make_driver()
    free.add(make_request("a", temperature=0.0))
    free.finish(["a"], 4)
    ending = free.tokens["a"][0]
    request = make_request("a", temperature=0.0, min_tokens=2, eos_token_ids=[ending])
    ignoring = make_request("b", temperature=0.0, min_tokens=2, ignore_eos=True)
    ignoring.prompt_token_ids, ignoring.eos_token_ids = request.prompt_token_ids, [ending]
    driver.add(request, ignoring)
    driver.finish(["a", "b"], 4)
    assert ending not in driver.tokens["a"][:2]
    assert driver.tokens["b"] == free.tokens["a"]


def test_kv_caches_are_reserved_and_zero(make_runner):
    """A pool of 512 MiB takes no memory until it is written."""
    runner = make_runner(num_slabs=50)
    shapes = [(tuple(k.shape), tuple(v.shape)) for k, v in runner.cache.layers]
    assert all(not cache.any() for pair in runner.cache.layers for cache in pair)
    assert shapes == [((50, 1, 16, 1),) * 2, ((50, 1, 4, 1),) * 2]
    before = runner.device.memory_used()
    pool = runner.device.reserve((1 << 28,), torch.bfloat16)
    assert runner.device.memory_used() - before < 64 * mmap.PAGESIZE
    pool[1 << 20] = 1.0
    assert pool[: (1 << 20) + 2].sum() == 1.0
