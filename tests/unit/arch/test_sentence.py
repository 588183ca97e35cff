"""What sentence-transformers' files say of pooling; layouts as its versions 2 and 6 write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.sentence import with_sentence_files
from pagoda.arch.spec import ModelSpec, PoolingSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

# As published with sentence-transformers/all-MiniLM-L6-v2.
MINILM = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384,
    "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
    "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize",
     "type": "sentence_transformers.sentence_transformer.modules.normalize.Normalize"},
]  # fmt: skip
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write(folder: Path, **files: Any) -> Path:
    names = {
        "modules": "modules.json", "pooling": "1_Pooling/config.json",
        "sentence": "sentence_bert_config.json", "tokenizer": "tokenizer_config.json",
    }  # fmt: skip
    for name, content in files.items():
        path = folder / names[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def read(folder: Path, **changes: Any) -> ModelSpec:
    config = {**MINILM, **changes}
    return with_sentence_files(spec_for(config, {}, ()), config, folder)


def test_all_minilm(tmp_path: Path) -> None:
    write(tmp_path, modules=MODULES, pooling=MEAN, sentence={"max_seq_length": 256})
    spec = read(tmp_path)
    assert spec.pooling == PoolingSpec("mean", True)
    assert spec.max_position == 256
    assert spec.encoder is not None and spec.encoder.num_positions == 512


def test_without_files_an_encoder_reads_its_first_token(tmp_path: Path) -> None:
    spec = read(tmp_path)
    assert (spec.pooling, spec.max_position) == (PoolingSpec("cls", True), 512)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
    ],
)
def test_ways_of_pooling(config: dict, method: str, tmp_path: Path) -> None:
    assert read(write(tmp_path, modules=MODULES[:2], pooling=config)).pooling == PoolingSpec(
        method, False
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "and"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({}, "nothing"),
    ],
)
def test_unknown_ways_of_pooling(config: dict, message: str, tmp_path: Path) -> None:
    write(tmp_path, modules=MODULES, pooling=config)
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path)


def test_unknown_modules(tmp_path: Path) -> None:
    other = {"path": "2_CNN", "type": "sentence_transformers.models.CNN"}
    write(tmp_path, modules=[*MODULES, other], pooling=MEAN)
    with pytest.raises(UnsupportedModelError, match="'CNN'; known are Transformer, .*Dense"):
        read(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"modules": "{}"},
        {"modules": MODULES},  # no 1_Pooling
        {"modules": [{"type": "x.Pooling", "path": "../elsewhere"}]},
        {"modules": ["Pooling"]},
        {"sentence": {"max_seq_length": "long"}},
    ],
)
def test_broken_files(files: dict, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        read(write(tmp_path, **files))


@pytest.mark.parametrize(
    ("longest", "expected"), [(128, 128), (1e30, 512), (None, 512), (4096, 512)]
)
def test_the_tokenizers_limit_where_there_is_no_other(
    longest: Any, expected: int, tmp_path: Path
) -> None:
    write(tmp_path, tokenizer={"model_max_length": longest})
    assert read(tmp_path).max_position == expected
    write(tmp_path, sentence={"max_seq_length": None})
    assert read(tmp_path).max_position == 512


@pytest.mark.parametrize(
    ("changes", "dimensions"),
    [
        ({}, None),
        ({"is_matryoshka": True}, ()),
        ({"matryoshka_dimensions": [64, 128]}, (64, 128)),
        ({"is_matryoshka": False}, None),
    ],
)
def test_dimensions(changes: dict, dimensions: tuple | None, tmp_path: Path) -> None:
    assert read(tmp_path, **changes).pooling.dimensions == dimensions


def test_a_decoder_pools_as_its_files_say(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    spec = spec_for(config, {}, ())
    write(tmp_path, modules=MODULES[:2], pooling={"pooling_mode_lasttoken": True})
    assert with_sentence_files(spec, config, tmp_path).pooling == PoolingSpec("last", False)
    write(tmp_path, pooling=MEAN)
    assert with_sentence_files(spec, config, tmp_path).pooling.method == "mean"


CLASSIFIER = {**MINILM, "architectures": ["BertForSequenceClassification"]}


@pytest.mark.parametrize(
    ("changes", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"id2label": {"0": "LABEL_0"}}, ("LABEL_0",), "sigmoid"),
        ({"id2label": {"1": "b", "0": "a"}}, ("a", "b"), "softmax"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        ({"problem_type": "regression", "id2label": {"0": "x"}}, ("x",), "identity"),
        (
            {"id2label": {"0": "x"},
             "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            ("x",),
            "identity",
        ),
        (
            {"id2label": {"0": "x"}, "sbert_ce_default_activation_function":
             "torch.nn.modules.linear.Identity"},
            ("x",),
            "identity",
        ),
    ],
)  # fmt: skip
def test_classifiers(changes: dict, labels: tuple, activation: str) -> None:
    pooling = spec_for({**CLASSIFIER, **changes}, {}, ()).pooling
    assert (pooling.labels, pooling.activation) == (labels, activation)


def test_labels_without_a_number() -> None:
    with pytest.raises(CheckpointError, match="id2label"):
        spec_for({**CLASSIFIER, "id2label": {"one": "a"}}, {}, ())
    with pytest.raises(UnsupportedModelError, match="Softplus"):
        given = {"activation_fn": "torch.nn.modules.activation.Softplus"}
        spec_for({**CLASSIFIER, "sentence_transformers": given}, {}, ())
