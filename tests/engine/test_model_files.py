"""What a config makes of a model's files, before any weight is read."""

import json
from pathlib import Path

import pytest

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.config.engine import ModelConfig
from pagoda.engine.start.model_files import spec_of
from pagoda.weights.files import open_model

ENCODER = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384,
    "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
    "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
CLASSIFIER = {
    **ENCODER,
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "ham", "1": "spam"},
}
DECODER = {
    "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 512, "model_type": "qwen3",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True, "vocab_size": 100,
}  # fmt: skip


def spec(folder: Path, config: dict[str, object], **asked: str) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    return spec_of(open_model(folder), ModelConfig(load_format="dummy", **asked))


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        (ENCODER, ("embed", "score")),
        (CLASSIFIER, ("embed", "score", "classify")),
        (DECODER, ("embed", "score", "generate")),
    ],
)
def test_a_task_that_the_model_can_do_changes_nothing(tmp_path, config, tasks):
    plain = spec(tmp_path, config)
    for task in tasks:
        assert spec(tmp_path, config, task=task) == plain


@pytest.mark.parametrize(
    ("config", "asked", "why"),
    [
        (ENCODER, {"task": "generate"}, "this model writes none"),
        (DECODER, {"task": "classify"}, "--task classify needs a classifier"),
        (DECODER, {"pooling": "rank"}, "--pooling rank needs a classifier"),
        (CLASSIFIER, {"pooling": "mean"}, "a classifier was trained with its own"),
    ],
)
def test_what_the_model_cannot_do_is_refused_with_the_reason(tmp_path, config, asked, why):
    with pytest.raises(ConfigError, match=why):
        spec(tmp_path, config, **asked)


def test_pooling_of_an_encoder_can_be_chosen(tmp_path):
    assert spec(tmp_path, ENCODER).pooling.method == "cls"
    assert spec(tmp_path, ENCODER, pooling="mean").pooling.method == "mean"
    assert spec(tmp_path, CLASSIFIER, pooling="rank").pooling.labels == ("ham", "spam")
    assert spec(tmp_path, DECODER).pooling.method == "last"
    assert spec(tmp_path, DECODER, pooling="mean").pooling.method == "mean"
