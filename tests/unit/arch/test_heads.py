"""Which head a decoder's spec has, by its class and by its tensors."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError
from tests.unit.arch.test_specs import LLAMA_3_1_8B, QWEN3_GGUF


def llama(architecture: str, tensors: tuple[str, ...] = (), **changes) -> ModelSpec:
    return spec_for({**LLAMA_3_1_8B, "architectures": [architecture], **changes}, {}, tensors)


def sources(spec: ModelSpec) -> set[str]:
    return {source for rule in spec.expanded_weights() for source in rule.sources}


@pytest.mark.parametrize(
    ("architecture", "tensors"),
    [
        ("LlamaModel", ()),
        ("LlamaModel", ("embed_tokens.weight",)),
        # As Qwen3-Embedding is published: a bare model under the class that writes text.
        ("LlamaForCausalLM", ("embed_tokens.weight", "norm.weight")),
    ],
)
def test_a_bare_model(architecture, tensors):
    spec = llama(architecture, tensors)
    assert not spec.writes_text
    assert {"embed_tokens.weight", "layers.31.mlp.down_proj.weight"} <= sources(spec)
    assert "lm_head.weight" not in sources(spec)
    assert spec.pooling.method == "last"


def test_a_bare_class_with_the_names_of_a_whole_model():
    spec = llama("LlamaModel", ("model.embed_tokens.weight",))
    assert "model.embed_tokens.weight" in sources(spec)
    assert not spec.writes_text


def test_a_model_that_writes_text():
    spec = llama("LlamaForCausalLM", ("model.embed_tokens.weight", "lm_head.weight"))
    assert spec.writes_text
    assert "lm_head.weight" in sources(spec)


def test_a_classifier():
    labels = {"id2label": {"0": "good", "1": "bad", "2": "ugly"}}
    spec = llama("LlamaForSequenceClassification", **labels)
    assert spec.pooling.labels == ("good", "bad", "ugly")
    assert (spec.pooling.method, spec.pooling.activation) == ("last", "softmax")
    assert "score.weight" in sources(spec)
    assert "lm_head.weight" not in sources(spec)
    assert not spec.writes_text


def test_a_cross_encoder():
    spec = llama("LlamaForSequenceClassification", id2label={"0": "LABEL_0"})
    assert (spec.pooling.labels, spec.pooling.activation) == (("LABEL_0",), "sigmoid")


def test_a_reranker_that_llama_cpp_converted():
    metadata = {**QWEN3_GGUF, "qwen3.classifier.output_labels": ["yes", "no"]}
    spec = spec_for(None, metadata, ["token_embd.weight", "cls.output.weight"])
    assert (spec.pooling.labels, spec.pooling.activation) == (("yes", "no"), "softmax")
    assert "cls.output.weight" in sources(spec)
    assert not spec.writes_text


@pytest.mark.parametrize(("code", "method"), [(0, "last"), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_gguf_says_how_vectors_are_pooled(code: int, method: str) -> None:
    metadata = {**QWEN3_GGUF, "qwen3.pooling_type": code}
    assert spec_for(None, metadata, ["token_embd.weight"]).pooling.method == method


def test_poolings_of_a_gguf_that_are_not_known() -> None:
    for code in (4, 9):
        with pytest.raises(UnsupportedModelError, match="pools by type"):
            spec_for(None, {**QWEN3_GGUF, "qwen3.pooling_type": code}, ["token_embd.weight"])
