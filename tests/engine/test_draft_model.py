"""A smaller model guesses behind each step, and changes no bit of what its model says."""

import logging
from dataclasses import replace

import pytest
import torch

from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.core.step_time import StepCost, StepTimes
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny

VOCAB = 264
TARGETS = {
    "llama": {},
    "qwen3_5": tiny.QWEN3_5,
    "gpt_oss": tiny.GPT_OSS,
}
DRAFT = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
LENGTHS = (5, 40, 90, 17)

pytestmark = pytest.mark.skipif(
    not ops.can_pack("cpu"), reason="the native kernels are not built here"
)


def save(folder, family: str, **changes):
    model = tiny.make(family, **{"vocab_size": VOCAB, **changes})
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=TARGETS)
def target(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp(request.param), request.param, **TARGETS[request.param])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """Random, and so is what it says. Its table is padded to another size."""
    return save(tmp_path_factory.mktemp("draft"), "qwen3", **DRAFT, vocab_size=VOCAB - 3)


@pytest.fixture(autouse=True)
def guesses_are_cheap(monkeypatch):
    """They are made and verified, however long that takes here."""
    cost = StepCost(per_token=1e-9, base=1.0)
    monkeypatch.setattr(StepTimes, "cost", lambda self, decodes=False: cost)


def start(folder, draft=None, most=3, **cache):
    said = {"method": "draft", "model": str(draft), "num_speculative_tokens": most}
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=256),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=3),
        device=DeviceConfig("cpu", threads=1),
        speculation=SpeculationConfig({"method": "none"} if draft is None else said),
    )
    return start_engine(config, lambda message: None)[0]


def replies(core, sampling: list[SamplingParams]):
    """Of several at once, prompts in chunks."""
    for i, (length, params) in enumerate(zip(LENGTHS, sampling, strict=True)):
        prompt = tiny.random_ids(length, seed=i)
        core.handle(AddRequest(req_id=f"r{i}", prompt_token_ids=prompt, sampling=params))
    said = {f"r{i}": ([], []) for i in range(len(LENGTHS))}
    while core.has_work():
        for delta in core.step():
            assert delta.error is None
            said[delta.req_id][0].extend(delta.token_ids)
            said[delta.req_id][1].extend(delta.logprobs or [])
        core.scheduler.check_integrity()
    return said


def sampling(temperature: float, **changes) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=30 + i, ignore_eos=True, logprobs=2,
            **changes,
        )
        for i in range(len(LENGTHS))
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_are_those_without_it(target, draft, temperature):
    """And again with all prefixes cached."""
    # Few tokens, so that some guesses come true by chance.
    asked = sampling(temperature, allowed_token_ids=[20, 21, 22, 23])
    expected = replies(start(target), asked)
    drafting = start(target, draft)
    assert replies(drafting, asked) == expected
    assert replies(drafting, asked) == expected
    stats = drafting.stats()
    assert stats.prefix_hits and stats.spec_draft_tokens > 100
    assert 0 < stats.spec_accepted_tokens < stats.spec_draft_tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_model_drafts_for_itself_comes_true(llama, temperature):
    """Twice: so prefixes of others, of which it drafted some and not others, were read, too."""
    asked = sampling(temperature)
    expected = replies(start(llama), asked)
    drafting = start(llama, llama)
    for _ in range(2):
        assert replies(drafting, asked) == expected
    stats = drafting.stats()
    assert stats.prefix_hits and stats.spec_draft_tokens > 100
    print(stats.spec_accepted_tokens, stats.spec_draft_tokens, stats.spec_drafts)
    assert stats.spec_accepted_tokens > 0.95 * stats.spec_draft_tokens
