"""A model whose layers are spread over processes answers as it does in one."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig, ParallelConfig
from pagoda.core.messages import AddRequest, PoolingParams, Utility
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from tests.engine.conftest import write_byte_tokenizer
from tests.engine.running import run, tokens
from tests.engine.test_ranks import (
    COUNT,
    are_gone,
    cached,
    config_of,
    expected,
    processes,
    request,
)
from tests.models import tiny, vision
from tests.models.vision import picture
from tests.plans import propose


def pipeline_config(folder: Path, ranks: int, stages: int, **options: Any) -> EngineConfig:
    config = config_of(folder, ranks * stages, **options)
    return replace(config, parallel=ParallelConfig(ranks, stages))


def start(folder: Path, ranks: int, stages: int, **options: Any) -> EngineCore:
    return start_engine(pipeline_config(folder, ranks, stages, **options), lambda message: None)[0]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Delta nets beside attention, with a tokenizer; and transformers' model."""
    folder = tmp_path_factory.mktemp("hybrid")
    reference = tiny.make("qwen3_5", **{**tiny.QWEN3_5, "vocab_size": 260})
    reference.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return reference, folder


@pytest.fixture(scope="module")
def pair(hybrid) -> Iterator[EngineCore]:
    """Two stages, with room for a few of six requests' states."""
    core = start(hybrid[1], 1, 2, slabs=24)
    yield core
    core.shutdown()


@pytest.fixture(scope="module")
def alone(hybrid) -> EngineCore:
    return start_engine(config_of(hybrid[1]), lambda message: None)[0]


def test_chunks_and_prefix_hits(hybrid, pair):
    reference, _ = hybrid
    prompts = {f"r{i}": tiny.random_ids(30 + 23 * i, seed=i) for i in range(6)}
    replies = {name: expected(reference, prompt) for name, prompt in prompts.items()}
    deltas = run(pair, *(request(name, prompt) for name, prompt in prompts.items()))
    assert {name: tokens(deltas[name]) for name in prompts} == replies
    (again,) = run(pair, request("again", prompts["r5"])).values()
    assert cached(again) >= 96 and tokens(again) == replies["r5"]


def test_each_stage_computes_steps_of_its_own(pair):
    """As many steps are under way as there are stages, and no request is in two of them."""
    for number in range(4):
        pair.handle(request(f"r{number}", tiny.random_ids(9, seed=number), max_tokens=30))
    seen = []
    while pair.has_work():
        pair.step()
        members = [set(step.plan.req_ids) for step in pair._in_flight]
        assert not set.intersection(*members) if len(members) > 1 else True
        seen.append(sum(map(len, members)))
    assert pair.executor.steps_in_flight == 2
    assert seen.count(2) > 20, "one step of two requests waits while the other is computed"


def test_sampling_as_in_one_process(pair, alone):
    choices: dict[str, dict[str, Any]] = {
        "seeded": {"temperature": 0.9, "seed": 5, "top_p": 0.95},
        "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        "biased": {"logit_bias": {7: 4.0}, "allowed_token_ids": list(range(100))},
        "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
        "stopping": {"temperature": 1.0, "seed": 1, "stop_token_ids": list(range(0, 260, 9))},
    }
    requests = [
        request(name, tiny.random_ids(40, seed=i), **how)
        for i, (name, how) in enumerate(choices.items())
    ]
    requests.append(request("grammar", tiny.random_ids(9), max_tokens=60, ignore_eos=False))
    requests[-1].grammar = '%llguidance {}\nstart: /[a-f]{3,5}/ "-" /[0-9]{4}/'
    requests[-1].eos_token_ids = [259]
    split, whole = (run(core, *requests) for core in (pair, alone))
    for req in requests:
        ours, theirs = split[req.req_id], whole[req.req_id]
        assert [token for d in ours for token in d.token_ids] == [
            token for d in theirs for token in d.token_ids
        ], req.req_id
        assert ours[-1].finish_reason == theirs[-1].finish_reason
        assert ours[-1].error is None
    for field in ("logprobs", "prompt_logprobs"):
        found, wanted = (
            [entry for d in core["logprobs"] for entry in getattr(d, field) or []]
            for core in (split, whole)
        )
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_vectors_beside_replies(pair, alone):
    """The last stage makes them, of a prompt in two chunks."""
    asked = [
        AddRequest(
            req_id=f"p{i}", prompt_token_ids=tiny.random_ids(90, seed=i), kind="pool",
            pooling=PoolingParams(),
        )
        for i in range(2)
    ]  # fmt: skip
    ours, theirs = (
        run(core, *asked, request("reply", tiny.random_ids(20))) for core in (pair, alone)
    )
    for req in asked:
        found, wanted = (
            memoryview(said[req.req_id][-1].embedding).cast("f").tolist() for said in (ours, theirs)
        )
        assert found == pytest.approx(wanted, abs=1e-4)
    assert tokens(ours["reply"]) == tokens(theirs["reply"])


def test_guesses_are_verified_through_the_stages(pair, alone):
    """Two that come true, and one that does not."""
    asked = [request(f"r{i}", tiny.random_ids(20 + i, seed=i), max_tokens=30) for i in range(3)]
    replies = {name: tokens(deltas) for name, deltas in run(alone, *asked).items()}
    scheduler, said = pair.scheduler, {name: [] for name in replies}
    for req in asked:
        pair.handle(req)
    while pair.has_work():
        for name, reply in replies.items():
            req = scheduler._requests.get(name)
            if req is not None and req.awaits_guesses:
                known = len(req.token_ids) - req.prompt_len
                right = reply[known : known + 2]
                propose(scheduler, name, [*right, (reply[known] + 1) % 250])
        for delta in pair.step():
            said[delta.req_id].append(delta)
        scheduler.check_integrity()
    for name, deltas in said.items():
        assert tokens(deltas) == replies[name]
        accepted = sum(delta.num_accepted_tokens > 0 for delta in deltas)
        assert accepted and deltas[-1].num_draft_tokens > deltas[-1].num_accepted_tokens


def test_clients_that_leave_and_requests_that_fail(hybrid, pair):
    reference, _ = hybrid
    prompts = {f"r{i}": tiny.random_ids(25, seed=40 + i) for i in range(6)}
    for name, prompt in prompts.items():
        pair.handle(request(name, prompt, max_tokens=40))
    for step in range(6):
        pair.step()
        pair.scheduler.abort([f"r{step}"])
        pair.scheduler.check_integrity()
    bad = request("bad", [1, 2, 3], allowed_token_ids=[5])
    bad.sampling.bad_words, bad.bad_word_ids = ["x"], [[5]]
    deltas = run(pair, bad, request("good", prompts["r0"]))
    assert deltas["bad"][-1].finish_reason == "error"
    assert tokens(deltas["good"]) == expected(reference, prompts["r0"])


def test_sleep_and_what_comes_behind_it(hybrid, pair):
    prompt = tiny.random_ids(70, seed=77)
    for number in range(7):
        pair.handle(request(f"r{number}", prompt))
    for _ in range(4):
        pair.step()
    assert pair.handle(Utility(1, "sleep")).error is None
    assert {d.finish_reason for d in pair.step() if d.finish_reason} == {"abort"}
    assert pair.handle(Utility(2, "wake_up")).error is None
    again = run(pair, request("after", prompt))["after"]
    assert tokens(again) == expected(hybrid[0], prompt) and cached(again) == 0


@pytest.mark.slow
def test_prefixes_on_disk_are_of_all_stages(hybrid, tmp_path):
    prompt = [(7 * i) % 250 for i in range(130)]
    texts, found = [], []
    for stages in (2, 2, 1):
        config = pipeline_config(hybrid[1], 1, stages)
        config = replace(config, cache=replace(config.cache, kv_disk=str(tmp_path)))
        core = start_engine(config, lambda message: None)[0]
        deltas = run(core, request("one", prompt, max_tokens=8))["one"]
        texts.append(tokens(deltas))
        found.append(deltas[0].num_cached_tokens)
        core.shutdown()
    assert texts[0] == texts[1] == texts[2]
    assert found[0] == found[2] == 0 and found[1] >= 64


@pytest.mark.slow
def test_stages_of_two_ranks_and_one_that_is_killed(tmp_path):
    """Windows beside whole contexts; then a rank dies with steps under way."""
    reference = tiny.make("gemma3", **tiny.GEMMA3)
    reference.save_pretrained(tmp_path)
    core = start(tmp_path, 2, 2, slabs=30)
    prompts = {f"r{i}": tiny.random_ids(40, seed=i) for i in range(5)}
    deltas = run(core, *(request(name, prompt) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert tokens(deltas[name]) == expected(reference, prompt), name
    pids = processes(core)
    assert len(pids) == 3
    for name, prompt in prompts.items():
        core.handle(request(f"{name} killed", prompt))
    for _ in range(3):
        core.step()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="The process of rank 2 was ended by SIGKILL"):
        while True:
            core.step()
    assert are_gone(pids)


@pytest.mark.slow
def test_pictures_are_encoded_in_the_first_stage(tmp_path):
    reference = vision.make()
    vision.save(reference, tmp_path)
    sizes = [("gradient", 64, 64), ("noise", 97, 203)]
    images = vision.processed(tmp_path, [picture(*size) for size in sizes])
    words = [token % 200 for token in tiny.random_ids(12)]
    pieces = [words, [200], images[0], [202], words, [200], images[1], [202], words]
    given = vision.prompt_of(pieces, tmp_path)
    core = start(tmp_path, 1, 2, slabs=80)
    try:
        seeing = request("seeing", given.ids)
        seeing.media = given.items
        deltas = run(core, seeing, request("text", words))
        ids = list(given.ids)
        for _ in range(COUNT):
            logits = vision.reference_logits(reference, ids, [picture(*size) for size in sizes])
            ids.append(int(logits[-1].argmax()))
        assert tokens(deltas["seeing"]) == ids[len(given.ids) :]
        assert len(tokens(deltas["text"])) == COUNT
    finally:
        core.shutdown()
