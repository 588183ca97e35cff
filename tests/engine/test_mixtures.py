"""Mixtures of experts through the whole engine: KV groups, recorded steps, a batch of requests."""

from pathlib import Path

import pytest
import torch

from pagoda import LLM, SamplingParams
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny

GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


def _save(folder: Path, family: str, sizes: dict):
    reference = tiny.make(family, **{**sizes, "vocab_size": 260})
    reference.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return reference


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_moe", tiny.QWEN3_MOE),
        ("gpt_oss", tiny.GPT_OSS),
        ("qwen3_5_moe", tiny.QWEN3_5_MOE),
        ("llama4", tiny.LLAMA4),
        ("mixtral", tiny.MIXTRAL),
        ("glm4_moe", tiny.GLM4_MOE),
        ("deepseek_v2", tiny.V2_LITE),
        ("deepseek_v3", tiny.DEEPSEEK_V3),
    ],
)
def test_greedy_texts_are_those_of_transformers(family, sizes, tmp_path):
    reference = _save(tmp_path, family, sizes)
    llm = LLM(
        model=str(tmp_path), dtype="float32", device="cpu", threads=2, max_model_len=128,
        num_gpu_blocks_override=129, block_size=4,
    )  # fmt: skip
    prompts = [tiny.random_ids(length, 256, seed=length) for length in (1, 12, 40, 61)]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], GREEDY)
    for ids, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            expected = reference.generate(
                torch.tensor([ids]), max_new_tokens=30, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        assert output.outputs[0].token_ids == expected[0, len(ids) :].tolist()
