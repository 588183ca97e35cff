"""A model with recurrent layers, served by the whole engine: states in slots, kept and resumed."""

import pytest
import torch

from pagoda import LLM, SamplingParams
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny

TOKENS = 8
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def reference():
    return tiny.make("qwen3_5", vocab_size=260, **tiny.QWEN3_5)


@pytest.fixture(scope="module")
def llm(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    reference.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return LLM(
        model=str(folder), device="cpu", threads=1, max_num_batched_tokens=32, max_num_seqs=8,
    )  # fmt: skip


def _expected(reference, prompt: list[int]) -> list[int]:
    """transformers' greedy tokens, computed from the start each time."""
    ids = list(prompt)
    for _ in range(TOKENS):
        with torch.inference_mode():
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_greedy_tokens_equal_transformers(llm, reference):
    """Alone and in a batch whose prompts take several steps; and again from kept states."""
    prompts = [tiny.random_ids(length, 256, seed=length) for length in (3, 90, 41)]
    expected = [_expected(reference, prompt) for prompt in prompts]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    for _ in range(2):
        outputs = llm.generate(given, GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == expected


def test_a_shared_prefix_is_resumed_from_a_kept_state(llm, reference):
    shared = tiny.random_ids(96, 256, seed=7)
    for tail in (5, 30):
        prompt = shared + tiny.random_ids(tail, 256, seed=tail)
        (output,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
        assert output.outputs[0].token_ids == _expected(reference, prompt)
    prompt = shared + tiny.random_ids(30, 256, seed=30) + [1, 2, 3]
    (output,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
    assert output.outputs[0].token_ids == _expected(reference, prompt)
    assert output.num_cached_tokens >= 96
