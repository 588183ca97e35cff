"""Whatever a model's files say, they are read, or an error says what is wrong with them."""

import contextlib
import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, PagodaError, RequestError
from pagoda.config.engine import ModelConfig
from pagoda.core.sampling import SamplingParams
from pagoda.doctor.subject import find_subject
from pagoda.engine.served.text_side import load_text_side
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.json_tokenizer import parts_from_folder
from pagoda.text.media.select import processor_for
from pagoda.text.tokenizer import Tokenizer
from pagoda.weights.files import open_model
from pagoda.weights.jsonfile import parse_json
from tests.unit.doctor.models import GPT_OSS, LLAMA, QWEN3_5, QWEN3_MOE
from tests.unit.planner.published import QWEN3_VL_2B
from tests.unit.text.vocabularies import byte_level_metadata, spm_metadata
from tests.unit.weights.hostile import HUGE, mutated, mutated_metadata

TEXT = "ab unable # ähm \U0001f999"
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
CONFIGS = [
    {**LLAMA, "rope_scaling": _LLAMA3, "eos_token_id": [1, 2]},
    {**LLAMA, "rope_scaling": _YARN},
    {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
    GPT_OSS,
    QWEN3_5,
    QWEN3_MOE,
    QWEN3_VL_2B,
]
GENERATION = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "eos_token_id": [1, 2]}
TOKENIZER_CONFIG = {
    "bos_token": "<s>", "eos_token": {"content": "</s>", "special": True, "lstrip": False},
    "added_tokens_decoder": {"4": {"content": "<tool>", "special": False, "normalized": False}},
    "extra_special_tokens": ["<more>"], "model_max_length": int(1e30),
    "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
}  # fmt: skip
_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
BPE = {
    "version": "1.0",
    "added_tokens": [{"id": 3, "content": "</s>", "special": True, **_ADDED}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {},
    },
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
        "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
        "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
    },
}  # fmt: skip
WORD_PIECE = {
    "version": "1.0",
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                   "strip_accents": None, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "un": 1, "##able": 2}},
}  # fmt: skip
UNIGRAM = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
              "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]]},
}  # fmt: skip


def read_folder(folder: Path, files: dict[str, Any]) -> None:
    """All that is read of a model before its weights, and one prompt."""
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    model = ModelConfig(str(folder))
    find_subject(model)
    side = load_text_side(model)
    side.tokenizer.decode(side.tokenizer.encode(TEXT))
    if side.chat_template is not None:
        side.chat_template.render([{"role": "user", "content": TEXT}])
    SamplingParams(**side.defaults)


def good_folder(**changed: Any) -> dict[str, Any]:
    names = {name.replace("_json", ".json"): value for name, value in changed.items()}
    return {
        "config.json": CONFIGS[0],
        "generation_config.json": GENERATION,
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "tokenizer.json": BPE,
    } | names


def with_scaling(factor: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_scaling": {**_LLAMA3, "factor": factor}}


def with_prefix(prefix: str) -> dict[str, Any]:
    return {**BPE, "model": {**BPE["model"], "continuing_subword_prefix": prefix}}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (good_folder(config_json=with_scaling(HUGE)), "config.json.*factor is a number of 401"),
        (good_folder(config_json=with_scaling(float("inf"))), "config.json.*factor is inf"),
        (
            good_folder(generation_config_json={"temperature": HUGE}),
            "generation_config.json.*temperature is a number of 401 digits",
        ),
        (
            good_folder(tokenizer_config_json={"eos_token": "\ud800"}),
            r"tokenizer_config.json.*eos_token has the lone surrogate U\+D800",
        ),
        (
            good_folder(tokenizer_config_json={"added_tokens_decoder": {"²": {}, "9" * 5000: {}}}),
            None,
        ),
        (good_folder(tokenizer_json=with_prefix("#####")), "tokenizer.json can't be read"),
    ],
)  # fmt: skip
def test_what_no_field_means_is_named_with_its_file(tmp_path, files, said):
    fails = contextlib.nullcontext() if said is None else pytest.raises(CheckpointError, match=said)
    with fails:
        read_folder(tmp_path, files)


def test_a_tokenizer_that_the_disk_does_not_give(tmp_path, monkeypatch):
    opened = Path.open

    def failing(path, *args, **options):
        if path.name == "tokenizer.json":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args, **options)

    (tmp_path / "tokenizer.json").write_text(json.dumps(BPE))
    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(CheckpointError, match=r"tokenizer.json can't be read: Input/output"):
        parts_from_folder(tmp_path, end_ids=[])


def test_healthy_files_are_read(tmp_path):
    for model in (BPE, WORD_PIECE, UNIGRAM):
        read_folder(tmp_path, good_folder(tokenizer_json=model))
    for config in CONFIGS[:-1]:  # the last one needs the tokens of pictures
        read_folder(tmp_path, good_folder(config_json=config))


def test_healthy_oddities_stay():
    text = b'{"time_step_limit": [0.0, Infinity], "model_max_length": %d}' % int(1e30)
    assert parse_json(text, "x")["model_max_length"] == int(1e30)


def test_numbers_beyond_floats_are_no_sampling_parameters():
    for name in ("temperature", "presence_penalty", "repetition_penalty", "top_p", "min_p"):
        for value in (HUGE, -HUGE, float("inf"), float("nan")):
            with pytest.raises(RequestError, match=name):
                SamplingParams(**{name: value})


def test_a_text_that_the_tokenizer_fails_on_is_a_request_error():
    class Panics:
        def encode(self, text: str, parse_special: bool) -> list[int]:
            raise type("PanicException", (BaseException,), {})("range end index out of range")

    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata()))
    tokenizer._encoder = Panics()
    with pytest.raises(RequestError, match="tokenizer fails on this text.*range end index"):
        tokenizer.encode("x")


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CONFIGS).flatmap(mutated))
@example({**LLAMA, "rope_scaling": []})
def test_any_config(tmp_path, config):
    with contextlib.suppress(PagodaError):
        read_folder(tmp_path, good_folder(config_json=config))


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([BPE, WORD_PIECE, UNIGRAM]).flatmap(mutated))
def test_any_tokenizer(tmp_path, tokenizer):
    with contextlib.suppress(PagodaError):
        read_folder(tmp_path, good_folder(tokenizer_json=tokenizer))


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated({"generation_config.json": GENERATION, "tokenizer_config.json": TOKENIZER_CONFIG}))
def test_any_generation_and_tokenizer_config(tmp_path, files):
    with contextlib.suppress(PagodaError):
        read_folder(tmp_path, good_folder() | files)


PICTURES = {
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 16,
    "temporal_patch_size": 2, "merge_size": 2, "fps": 2, "min_frames": 4, "max_frames": 768,
    "size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16},
}  # fmt: skip


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([PICTURES, {"image_processor": PICTURES}]).flatmap(mutated))
def test_any_preprocessor(tmp_path, pictures):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_VL_2B))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pictures))
    with contextlib.suppress(PagodaError):
        files = open_model(tmp_path)
        for kind in ("image", "video"):
            assert processor_for(files, kind).placeholder


GGUF = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 2048,
    "llama.embedding_length": 64, "llama.feed_forward_length": [96, 128],
    "llama.attention.head_count": [4, 4], "llama.attention.head_count_kv": [4, 2],
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 99,
    "llama.rope.dimension_count": 16, "llama.rope.scaling.factor": 2.0,
    "llama.rope.scaling.type": "yarn", "tokenizer.chat_template": "{{ messages[0].content }}",
    "general.name": "x",
}  # fmt: skip


@settings(max_examples=120)
@given(
    st.sampled_from(
        [
            {**GGUF, **byte_level_metadata()},
            {**GGUF, **spm_metadata({"<unk>": 0.0, "▁a": -1.0, "b": -2.0})},
        ]
    ).flatmap(mutated_metadata)
)
def test_any_gguf_metadata(metadata):
    with contextlib.suppress(PagodaError):
        spec_for(None, metadata, ["token_embd.weight"])
    with contextlib.suppress(PagodaError):
        tokenizer = Tokenizer(parts_from_gguf(metadata))
        tokenizer.decode(tokenizer.encode(TEXT))
