"""Token ids of the default model, as the tokenizer of llama.cpp (llama-cpp-python 0.3.36) gives.

`plain_ids` are those with control tokens read as text, where they differ.
"""

import json
from pathlib import Path

import pytest

from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import load_chat_template
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import open_model

CASES = json.loads((Path(__file__).parent / "tokenizer_ids.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_model(smollm2_gguf))


@pytest.mark.parametrize("case", CASES, ids=[str(index) for index in range(len(CASES))])
def test_ids(tokenizer: Tokenizer, case: dict):
    assert tokenizer.encode(case["text"]) == case["ids"]
    plain = tokenizer.encode(case["text"], parse_special=False)
    assert plain == case.get("plain_ids", case["ids"])
    assert tokenizer.decode(case["ids"]) == case["text"]


def test_facts(tokenizer: Tokenizer):
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.eos_token_ids == (0, 2)


def test_chat(tokenizer: Tokenizer, smollm2_gguf: Path):
    template = load_chat_template(open_model(smollm2_gguf), tokenizer)
    assert template is not None
    prompt = template.render([{"role": "user", "content": "What is 17 * 23?"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is 17 * 23?<|im_end|>\n<|im_start|>assistant\n"
    )
    expected = next(case["ids"] for case in CASES if case["text"] == prompt)
    assert tokenizer.encode(prompt) == expected
    assert template.content_format == "string"
    assert parser_for(template.source).name == "none+hermes"
