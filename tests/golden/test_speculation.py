"""Verifying guesses changes no bit of what the default model says."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from pagoda.core.step_time import StepCost, StepTimes
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.llm import LLM
from tests.models import tiny_eagle3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPTS = [
    "Here is a list of fruit and its colour: apple red, banana yellow, cherry red,",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef",
    "The capital of France is Paris. The capital of Italy is",
    "Il était une fois, dans un petit village,",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "ages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "ages"],
}
KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=48, logprobs=3),
    "sampled": SamplingParams(temperature=1.0, seed=11, max_tokens=48, logprobs=3),
    "narrow": SamplingParams(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.02, seed=5, max_tokens=48
    ),
    "penalties": SamplingParams(
        temperature=0.8, seed=3, repetition_penalty=1.3, frequency_penalty=0.4,
        presence_penalty=0.2, max_tokens=48,
    ),
    "rules": SamplingParams(
        temperature=0.9, seed=4, min_tokens=40, logit_bias={30: 4.0}, bad_words=[" the"],
        max_tokens=48,
    ),
    "stop": SamplingParams(temperature=0.9, seed=8, stop=["\n", " is"], max_tokens=48),
    "schema": SamplingParams(
        temperature=0.8, seed=9, max_tokens=48,
        structured_outputs=StructuredOutputsParams(json=SCHEMA),
    ),
}  # fmt: skip


class NoisyOracle:
    """Knows the replies, and garbles some of its tokens."""

    chances = (0.9,)

    def __init__(self, replies: dict[tuple[int, ...], list[int]]):
        self.replies = replies
        self.chance = random.Random(1)

    def guess(self, req, most: int) -> list[Guess]:
        prompt = tuple(req.token_ids[: req.prompt_len])
        known = len(req.token_ids) - req.prompt_len
        tokens = [
            token if self.chance.random() < 0.85 else self.chance.randrange(40_000)
            for token in self.replies.get(prompt, [])[known : known + self.chance.randint(1, most)]
        ]
        return [Guess(tokens, [0] * len(tokens))]

    def forget(self, req) -> None:
        pass


@pytest.fixture(scope="module")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    yield LLM(str(smollm2_gguf), max_model_len=512, enable_prefix_caching=False)


def run(llm: LLM, kind: str, speculator: Speculator | None, prompts: list[str] = PROMPTS):
    llm._core.scheduler.speculator = speculator
    outputs = llm.generate(prompts, KINDS[kind], use_tqdm=False)
    return [
        (out.prompt_token_ids, c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs)
        for out in outputs
        for c in out.outputs
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_the_same_with_guesses(llm, kind):
    plain = run(llm, kind, None)
    oracle = NoisyOracle({tuple(prompt): list(ids) for prompt, ids, *_ in plain})
    before = llm._core.scheduler.stats()
    guessed = run(llm, kind, Speculator(oracle, SpeculationLimits(6)))
    alone = [
        run(llm, kind, Speculator(oracle, SpeculationLimits(9)), [prompt])[0] for prompt in PROMPTS
    ]
    stats = llm._core.scheduler.stats()
    assert stats.spec_accepted_tokens > before.spec_accepted_tokens + 20
    assert stats.spec_draft_tokens - before.spec_draft_tokens > (
        stats.spec_accepted_tokens - before.spec_accepted_tokens
    )
    assert plain == guessed
    assert plain == alone


def test_what_repeats_itself_takes_fewer_steps(smollm2_gguf):
    """As it comes, with nothing set."""
    llm = LLM(str(smollm2_gguf), max_model_len=1024)
    text = "The old miller walks down to the river. He counts his seven sacks of flour.\n"
    sampling = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    (output,) = llm.generate([text * 6], sampling, use_tqdm=False)
    stats = llm._core.stats()
    assert stats.spec_accepted_tokens > 60
    assert stats.num_steps < 80
    plain = LLM(str(smollm2_gguf), max_model_len=1024, speculative_config={"method": "none"})
    (same,) = plain.generate([text * 6], sampling, use_tqdm=False)
    assert same.outputs[0].token_ids == output.outputs[0].token_ids
    assert plain._core.stats().num_steps >= 120


class Hopeful(Speculator):
    """Asks for guesses in each step, however wrong the last ones were."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, 3 if name == "num_drafts" else value)


@pytest.fixture(scope="module")
def headed(smollm2_gguf: Path, tmp_path_factory) -> Iterator[LLM]:
    """With an EAGLE-3 head of random weights, which is seldom right."""
    sizes = SimpleNamespace(hidden_size=576, vocab_size=49_152)
    model = SimpleNamespace(config=sizes, get_input_embeddings=lambda: None)
    head = tiny_eagle3.make(model, hidden_size=576, intermediate_size=768, draft_vocab_size=4000)
    config = tiny_eagle3.config_of(head, eagle_aux_hidden_state_layer_ids=None)
    folder = tiny_eagle3.save(tmp_path_factory.mktemp("head"), head, config)
    yield LLM(
        str(smollm2_gguf), max_model_len=512, enable_prefix_caching=False,
        speculative_config={"method": "eagle3", "model": str(folder)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_the_same_with_an_eagle3_head(headed, kind, monkeypatch):
    cost = StepCost(per_token=1e-9, base=1.0)  # guesses are verified, however long that takes here
    monkeypatch.setattr(StepTimes, "cost", lambda self, decodes=False: cost)
    before = headed._core.stats().spec_draft_tokens
    guessed = run(headed, kind, Hopeful(DraftedProposer(), SpeculationLimits(3)))
    assert headed._core.stats().spec_draft_tokens > before + 20
    assert guessed == run(headed, kind, None)
