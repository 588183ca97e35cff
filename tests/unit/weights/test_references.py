"""What a model is called on the command line, and what is meant by it."""

import pytest

from pagoda.base.errors import SourceError
from pagoda.weights.source import ModelRef, parse_ref


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("smollm2", ModelRef("alias", "smollm2")),
        ("org/name", ModelRef("hf", "org/name")),
        ("org/name:Q4_K_M", ModelRef("hf", "org/name", "Q4_K_M")),
        ("org/name:sub/m.gguf", ModelRef("hf", "org/name", "sub/m.gguf")),
        ("hf:org/na.me-1", ModelRef("hf", "org/na.me-1")),
        ("modelscope:org/name:Q8_0", ModelRef("modelscope", "org/name", "Q8_0")),
    ],
)
def test_references(ref: str, expected: ModelRef) -> None:
    assert parse_ref(ref) == expected


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("smolm2", "Did you mean 'smollm2'"),
        ("./m.gguf", "no file or folder"),
        ("models/m.gguf", "no file or folder"),
        ("/a/b/", "no file or folder"),
        ("", "no file or folder"),
        ("a/b/c", "no hub model"),
        ("hf:name", "no hub model"),
        ("hf:../name", "no hub model"),
        ("org/name:", "no hub model"),
    ],
)
def test_references_that_mean_nothing(ref: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        parse_ref(ref)


@pytest.mark.parametrize(
    ("ref", "name", "selector"),
    [
        ("Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Instruct", None),
        ("gemma-4-31b-it", "google/gemma-4-31b-it", None),
        ("gpt-oss-20b", "openai/gpt-oss-20b", None),
        ("Qwen3-8B-GGUF:Q8_0", "Qwen/Qwen3-8B-GGUF", "Q8_0"),
    ],
)
def test_well_known_names_need_no_publisher(ref, name, selector):
    assert parse_ref(ref) == ModelRef("hf", name, selector)


@pytest.mark.parametrize("ref", ["qwen", "Qwen3-8B.gguf", "my-model", "./gpt-oss-20b"])
def test_other_names_do(ref):
    with pytest.raises(SourceError, match="There is no file or folder"):
        parse_ref(ref)
