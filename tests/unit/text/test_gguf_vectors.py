"""Token ids of llama.cpp's vocabularies against llama.cpp's own vectors."""

from pathlib import Path

import pytest

from pagoda.base.errors import UnsupportedModelError
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import open_model

# Every vocabulary that has vectors: BPE, SentencePiece (llama-spm, phi-3) and WordPiece (bert-bge).
WITH_VECTORS = (
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
    "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
WITHOUT_VECTORS = ("aquila", "baichuan", "gpt-neox")
UNKNOWN_FAMILY = ("nomic-bert-moe",)  # t5: unigram, of which no served architecture has need


def load(folder: Path, name: str) -> Tokenizer:
    return load_tokenizer(open_model(folder / f"ggml-vocab-{name}.gguf"))


def vectors(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    path = folder / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text("utf-8").split("\n")
    return [
        (text, [int(index) for index in line.split()])
        for text, line in zip(texts, lines, strict=False)  # the files end in a blank line
    ]


def test_no_vocabulary_is_left_out(llama_models: Path):
    found = {path.stem.removeprefix("ggml-vocab-") for path in llama_models.glob("*.gguf")}
    assert found == {*WITH_VECTORS, *WITHOUT_VECTORS, *UNKNOWN_FAMILY}
    tested = {path.name for path in llama_models.glob("*.out")}
    assert tested == {f"ggml-vocab-{name}.gguf.out" for name in WITH_VECTORS}


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_ids_are_llama_cpps(llama_models: Path, name: str):
    tokenizer = load(llama_models, name)
    cases = vectors(llama_models, name)
    assert len(cases) > 40
    for text, expected in cases:
        # How llama.cpp made the vectors: no BOS, and control tokens are ordinary text.
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == expected, text


@pytest.mark.parametrize("name", WITHOUT_VECTORS)
def test_vocabularies_without_vectors_round_trip(llama_models: Path, name: str):
    tokenizer = load(llama_models, name)
    text = "Hello, 12345 wörld! 你好  \n\tdef f(x):\n    return 'x' 🦙"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("name", UNKNOWN_FAMILY)
def test_an_unknown_family_is_named(llama_models: Path, name: str):
    with pytest.raises(UnsupportedModelError, match="family 't5'"):
        load(llama_models, name)
