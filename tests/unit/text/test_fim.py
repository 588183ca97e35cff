"""Filling in the middle: the tokens of each family, by `tokenizers`' own ids."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken

from pagoda.text.fim import FimTokens, fim_tokens, infill_prompt
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import open_model
from tests.unit.text.vocabularies import train_byte_level

# As the families' tokenizer files have them.
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def model_with(folder: Path, names: tuple[str, ...]) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    theirs = tokenizers.Tokenizer.from_str(train_byte_level().to_str())
    theirs.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    theirs.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text("{}")
    return load_tokenizer(open_model(folder)), theirs


@pytest.mark.parametrize("names", [QWEN, STARCODER, DEEPSEEK])
def test_families(tmp_path: Path, names: tuple[str, ...]) -> None:
    ours, theirs = model_with(tmp_path, names)
    assert fim_tokens(ours) == FimTokens(*(theirs.token_to_id(name) for name in names))


@pytest.mark.parametrize("names", [(), QWEN[:2], (QWEN[0], STARCODER[1], QWEN[2])])
def test_models_without(tmp_path: Path, names: tuple[str, ...]) -> None:
    ours, _ = model_with(tmp_path, names)
    assert fim_tokens(ours) is None


def test_prompt(tmp_path: Path) -> None:
    ours, theirs = model_with(tmp_path, QWEN)
    fim = fim_tokens(ours)
    assert fim is not None
    ids = infill_prompt(ours, fim, "def f(", "): pass\n", "a", [("x.py", "b = 1")], room=1000)
    text = theirs.decode(ids, skip_special_tokens=False)
    assert text == (
        "<|repo_name|>repository\n<|file_sep|>x.py\nb = 1\n<|file_sep|>current\n"
        "<|fim_prefix|>def f(a<|fim_suffix|>): pass\n<|fim_middle|>"
    )
    inside = infill_prompt(ours, fim, "def f(", "): pass\n", "a", [], room=1000)
    for room in (0, len(inside), len(inside) + 5, len(ids), len(ids) + 1):
        cut = infill_prompt(ours, fim, "def f(", "): pass\n", "a", [("x.py", "b = 1")], room)
        assert cut == ids[max(0, len(ids) - max(room, len(inside))) :]


@pytest.mark.parametrize(
    ("name", "expected"), [("starcoder", STARCODER), ("deepseek-coder", DEEPSEEK), ("gpt-2", None)]
)
def test_real_vocabularies(llama_models: Path, name: str, expected: tuple[str, ...] | None) -> None:
    tokenizer = load_tokenizer(open_model(llama_models / f"ggml-vocab-{name}.gguf"))
    fim = fim_tokens(tokenizer)
    if expected is None:
        assert fim is None
    else:
        assert fim is not None
        ids = (fim.prefix, fim.suffix, fim.middle, fim.repository, fim.file)
        names = [tokenizer.vocab_entry(index) for index in ids if index is not None]
        assert names == list(expected)
