"""A draft model that cannot guess for the model is refused before anything is loaded: with the
words of the command line, the reason, and what to do."""

import json
import logging
from pathlib import Path

import pytest

from pagoda.base.errors import ConfigError, PagodaError, SourceError
from pagoda.cli import serve
from pagoda.config import flags
from pagoda.config.parser import FlagParser
from pagoda.doctor.subject import find_subject, with_draft_model
from pagoda.engine.start.draft_model import find_draft_model
from pagoda.engine.start.model_files import spec_of
from pagoda.engine.start.phases import Phases
from pagoda.weights.files import open_model
from tests.engine.conftest import TINY_LLAMA, write_byte_tokenizer
from tests.models import gemma4_gguf
from tests.models import gemma4_vision as vision

QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 32, "head_dim": 16,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 260, "linear_num_key_heads": 1,
    "linear_num_value_heads": 1, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "tie_word_embeddings": True, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
ENCODER = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 16,
    "intermediate_size": 16, "layer_norm_eps": 1e-12, "max_position_embeddings": 64,
    "model_type": "bert", "num_attention_heads": 2, "num_hidden_layers": 1, "pad_token_id": 0,
    "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 260,
}  # fmt: skip
VISION = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
    "image_token_id": 256, "video_token_id": 257, "vision_start_token_id": 258,
    "vision_end_token_id": 259, "tie_word_embeddings": True,
    "text_config": {
        "hidden_size": 16, "head_dim": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 260,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "rope_scaling": {"mrope_section": [2, 1, 1], "rope_type": "default"},
    },
    "vision_config": {
        "hidden_size": 16, "depth": 1, "num_heads": 2, "intermediate_size": 16, "patch_size": 4,
        "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 16,
        "out_hidden_size": 16, "deepstack_visual_indexes": [],
    },
}  # fmt: skip
REMEDY = (
    "Name a smaller text model of the same family, which has the same tokenizer, or leave the "
    "draft model out."
)


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "model", TINY_LLAMA)


def write(folder, config, tokens=True):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tokens:
        write_byte_tokenizer(folder)
    return folder


def parsed(line: str):
    parser = FlagParser()
    serve.add_arguments(parser)
    return flags.engine_config(parser.parse_args([*line.split(), "--load-format", "dummy"]))


def found(line: str):
    config = parsed(line)
    files = open_model(Path(config.model.model))
    phases = Phases(lambda message: None, None)
    return find_draft_model(config, files, spec_of(files, config.model), phases)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**TINY_LLAMA, "num_hidden_layers": 3}, "it is the larger one, of 0.0M parameters"),
        ({**TINY_LLAMA, "vocab_size": 300}, "its vocabulary has 300 tokens, and the model's 260"),
        (QWEN3_5, "it has recurrent layers, which cannot go back behind a wrong guess"),
        (ENCODER, "it makes vectors and scores, and no text"),
        (VISION, "it has a vision tower, and drafts are made of text alone"),
    ],
    ids=["larger", "vocabulary", "recurrent", "encoder", "vision"],
)
def test_a_model_that_cannot_draft(model, tmp_path, config, why):
    draft = write(tmp_path / "draft", config)
    line = f"{model} --model-draft {draft}"
    with pytest.raises(ConfigError) as raised:
        found(line)
    said = str(raised.value)
    assert said.startswith(f"The draft model {draft} cannot guess for this model: {why}")
    assert said.endswith(REMEDY)
    with pytest.raises(ConfigError) as raised:
        asked = parsed(line)
        with_draft_model(find_subject(asked.model), asked)
    assert str(raised.value) == said


def test_one_device_only(model, tmp_path):
    draft = write(tmp_path / "draft", TINY_LLAMA)
    with pytest.raises(ConfigError, match="split over several devices, and a draft model runs on"):
        found(f"{model} -md {draft} --tensor-parallel-size 2")


def test_other_tokens(model, tmp_path):
    """As many, and in another order."""
    draft = write(tmp_path / "draft", TINY_LLAMA)
    state = json.loads((draft / "tokenizer.json").read_text())
    vocab = state["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (draft / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="2 of its tokens are others, such as 64, which is 'b'"):
        found(f"{model} -md {draft}")


def test_fewer_tokens_behind_a_table_of_the_same_size(model, tmp_path):
    draft = write(tmp_path / "draft", TINY_LLAMA)
    state = json.loads((draft / "tokenizer.json").read_text())
    vocab = state["model"]["vocab"]
    state["model"]["vocab"] = {text: index for text, index in vocab.items() if index < 128}
    state["added_tokens"] = []
    (draft / "tokenizer_config.json").unlink()
    (draft / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="its vocabulary has 128 tokens, and the model's 260"):
        found(f"{model} -md {draft}")


@pytest.mark.parametrize("vocab_size", [256, 264, 280])
def test_tables_may_be_padded(model, tmp_path, vocab_size):
    draft = write(
        tmp_path / "draft", {**TINY_LLAMA, "num_hidden_layers": 1, "vocab_size": vocab_size}
    )
    made = found(f"{model} -md {draft}")
    assert made is not None and made.model.spec.vocab_size == vocab_size


def test_the_model_itself_is_no_larger(model):
    assert found(f"{model} -md {model}") is not None


def test_a_gguf_drafts_without_the_tower_beside_it(tmp_path):
    model = vision.make(num_positions=10240)
    gemma4_gguf.write_tower(tmp_path / "mmproj-F16.gguf", model)
    path = tmp_path / "model.gguf"
    gemma4_gguf.write_model(path, model)
    line = f"{path} --model-draft {path}"
    made = found(line)
    assert made is not None and made.files.projector is None and made.model.spec.vision is None
    asked = parsed(line)
    subject = with_draft_model(find_subject(asked.model), asked)
    assert subject.spec.vision is not None and subject.draft.spec == made.model.spec


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("-md nothere", "The draft model nothere cannot be used: There is no file or folder"),
        ("--spec-draft-model /nothere.gguf", "The draft model /nothere.gguf cannot be used: "),
    ],
)
def test_one_that_is_not_there(model, line, error):
    with pytest.raises(SourceError) as raised:
        found(f"{model} {line}")
    assert str(raised.value).startswith(error)
    assert str(raised.value).endswith("It is what `model` of --speculative-config (or -md) names.")


def test_one_without_a_tokenizer(model, tmp_path):
    draft = write(tmp_path / "draft", TINY_LLAMA, tokens=False)
    with pytest.raises(PagodaError, match=f"The draft model {draft} cannot be used: .*tokenizer"):
        found(f"{model} -md {draft}")


@pytest.mark.parametrize(
    "line", ["--spec-method draft", """-sc {"method":"draft_model","num_speculative_tokens":4}"""]
)
def test_a_method_without_a_model(model, line):
    with pytest.raises(ConfigError, match='"draft" needs a model that drafts: name it as "model"'):
        found(f"{model} {line}")


@pytest.mark.parametrize("line", ["--draft-max 0", "--spec-type ngram-mod"])
def test_one_that_is_not_to_guess_is_not_looked_for(model, line):
    assert found(f"{model} -md nothere {line}") is None


def test_what_makes_vectors_needs_none(tmp_path, caplog):
    """Of a server with several models."""
    with caplog.at_level(logging.WARNING):
        assert found(f"{write(tmp_path / 'encoder', ENCODER)} -md nothere") is None
    assert not caplog.records
