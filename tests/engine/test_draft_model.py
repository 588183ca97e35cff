"""A smaller model guesses behind each step, and changes no bit of what its model says."""

import logging

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
from tests.engine import running
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


def start(folder, draft=None, *, eager=False, quantization="none", **cache):
    said = {"method": "draft", "model": str(draft), "num_speculative_tokens": 3}
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=256, quantization=quantization),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=3),
        device=DeviceConfig("cpu", threads=1, enforce_eager=eager),
        speculation=SpeculationConfig({"method": "none"} if draft is None else said),
    )
    return start_engine(config, lambda message: None)[0]


def replies(core, sampling: list[SamplingParams]):
    return running.replies(core, sampling, LENGTHS)


def sampling(temperature: float, most: int = 30, **changes) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=most + i, ignore_eos=True, logprobs=2,
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
    """With prefixes from the cache as without."""
    asked = sampling(temperature)
    expected = replies(start(llama), asked)
    drafting = start(llama, llama)
    for _ in range(2):
        assert replies(drafting, asked) == expected
    stats = drafting.stats()
    assert stats.prefix_hits and stats.spec_draft_tokens > 100
    assert stats.spec_accepted_tokens > 0.99 * stats.spec_draft_tokens


def test_guesses_find_blocks(llama):
    """All of them come true, so each step gives four tokens, at the end of a block as well."""
    core, steps = start(llama, llama), 0
    params = SamplingParams(temperature=0.0, max_tokens=121, ignore_eos=True)
    prompt = tiny.random_ids(16)
    core.handle(AddRequest(req_id="r", prompt_token_ids=prompt, sampling=params))
    while core.has_work():
        core.step()
        core.scheduler.check_integrity()
        steps += 1
    # Beside the prompt's, with its first token, and one in which guesses are asked for first.
    assert steps <= 2 + 120 // 4


def test_what_was_computed_without_guesses_was_read_all_the_same(llama, monkeypatch):
    """While nothing is guessed, whole blocks are read; a later turn of the talk begins with them,
    and what is guessed there comes true."""
    talk = tiny.random_ids(40)
    core = start(llama, llama)

    def reply() -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        core.handle(AddRequest(req_id="r", prompt_token_ids=list(talk), sampling=params))
        said = []
        while core.has_work():
            for delta in core.step():
                said += delta.token_ids
        return said

    with monkeypatch.context() as quiet:
        quiet.setattr(core.scheduler.speculator, "propose", lambda *_: None)
        talk += reply()
    assert not core.stats().spec_drafts
    talk += [7, 8, 9]
    reply()
    stats = core.stats()
    assert stats.prefix_hits >= 80 and stats.spec_draft_tokens > 30
    assert stats.spec_accepted_tokens == stats.spec_draft_tokens


def test_preempted_requests_go_on_guessing(llama):
    asked = sampling(1.0, most=100)
    expected = replies(start(llama), asked)
    drafting = start(llama, llama, num_gpu_blocks_override=18)
    assert replies(drafting, asked) == expected
    stats = drafting.stats()
    assert stats.num_preemptions and stats.spec_draft_tokens > 40
    assert stats.spec_accepted_tokens > 0.95 * stats.spec_draft_tokens


def test_prefixes_on_disk_have_what_the_draft_model_read(llama, draft, tmp_path):
    asked = sampling(0.0)
    kept = {"kv_disk": str(tmp_path / "kept")}
    first = start(llama, llama, **kept)
    expected = replies(first, asked)
    first.shutdown()
    # The blocks of a model with another draft model are others.
    other = start(llama, draft, **kept)
    assert replies(other, asked) == expected and not other.stats().prefix_hits
    second = start(llama, llama, **kept)
    assert replies(second, asked) == expected
    stats = second.stats()
    assert stats.prefix_hits and stats.spec_accepted_tokens > 0.99 * stats.spec_draft_tokens


def test_it_keeps_the_bits_of_its_file(llama):
    """Also where the model's weights are rounded as they load."""
    asked = sampling(1.0)
    expected = replies(start(llama, quantization="int8"), asked)
    drafting = start(llama, llama, quantization="int8")
    runner = drafting.executor.runner
    assert runner.draft_model.nbytes == start(llama).executor.runner.model.nbytes
    assert runner.model.nbytes < runner.draft_model.nbytes
    assert replies(drafting, asked) == expected
    assert drafting.stats().spec_accepted_tokens > 20


def test_beyond_its_context_nothing_is_guessed(llama, tmp_path, caplog):
    short = save(tmp_path, "llama", max_position_embeddings=64)
    asked = sampling(0.0)
    expected = replies(start(llama), asked)
    with caplog.at_level(logging.INFO):
        drafting = start(llama, short)
    assert "within the first 64 tokens of a text" in caplog.text
    assert replies(drafting, asked) == expected
    stats = drafting.stats()
    # One prompt is longer, and another's reply ends behind it.
    assert 20 < stats.spec_draft_tokens < 100
    assert stats.spec_accepted_tokens > 0.9 * stats.spec_draft_tokens


@pytest.mark.parametrize("eager", [False, True])
def test_weights_that_are_no_numbers_do_no_harm(llama, tmp_path, eager):
    model = tiny.make("llama", vocab_size=VOCAB)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    model.save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    asked = sampling(1.0)
    expected = replies(start(llama), asked)
    assert replies(start(llama, tmp_path, eager=eager), asked) == expected


def test_a_draft_model_that_fails_is_left_out_and_said_once(llama, draft, monkeypatch, caplog):
    asked = sampling(0.0)
    expected = replies(start(llama), asked)
    drafting = start(llama, draft)

    def fail(*_):
        raise ValueError("broken")

    monkeypatch.setattr("pagoda.runtime.speculation.model_drafter.choose", fail)
    assert replies(drafting, asked) == expected
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Nothing is guessed any more, which costs speed only" in caplog.text
    assert not drafting.stats().spec_drafts


def test_the_log_says_what_guesses(llama, draft, caplog):
    with caplog.at_level(logging.INFO):
        start(llama, draft)
    lines = caplog.messages
    assert any(line.startswith(f"speculation = draft (by {draft} of ") for line in lines)
    assert any(line.split()[:2] == ["draft", "model"] and "what guesses" in line for line in lines)
