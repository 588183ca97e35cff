"""What pictures cost, and how large they may be."""

from dataclasses import replace

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig, MediaConfig, ModelConfig
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.memory.vision import kept_bytes
from pagoda.planner.quantization import quantized_tensors
from pagoda.planner.resolve import resolve
from pagoda.weights.checkpoint import TensorInfo
from tests.unit.arch.test_gemma3 import GEMMA3_4B
from tests.unit.planner.published import (
    QWEN2_VL_2B,
    QWEN3_VL_8B,
    QWEN3_VL_235B,
    QWEN25_VL_3B,
    QWEN25_VL_7B,
)

CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144,
        "vocab_size": 151936, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
        "rope_theta": 5000000,
        "rope_scaling": {
            "rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
        "out_hidden_size": 2048, "num_position_embeddings": 2304, "patch_size": 16,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}  # fmt: skip
"""Qwen3-VL-2B's."""


def facts(device: str = "cpu") -> DeviceFacts:
    return DeviceFacts(device, 64 << 30, 60 << 30, 4, supports_bf16=True)


def spec() -> ModelSpec:
    return spec_for(CONFIG, {}, ())


def test_parameters() -> None:
    # 1,720,574,976 of Qwen3-1.7B, which is the language model, and the tower's 407 million.
    assert parameter_count(replace(spec(), vision=None)) == 1_720_574_976
    assert parameter_count(spec()) == 2_127_532_032  # as the hub counts the model: 2.13 B


def test_parameters_of_larger_ones() -> None:
    whole = parameter_count(spec_for(QWEN3_VL_8B, {}, ()))
    assert whole == 8_767_123_696  # as the shards of the checkpoint sum up
    largest = spec_for(QWEN3_VL_235B, {}, ())
    text = parameter_count(replace(largest, vision=None))
    assert text == 235_093_634_560  # Qwen3-235B-A22B, which is the language model
    # The towers are alike: 8,190,735,360 of the 8B are Qwen3-8B.
    assert parameter_count(largest) - text == whole - 8_190_735_360


@pytest.mark.parametrize(
    ("config", "parameters"),
    # As the hub counts them, in the index of the checkpoints' shards.
    [
        (QWEN2_VL_2B, 2_208_985_600),
        (QWEN25_VL_3B, 3_754_622_976),
        (QWEN25_VL_7B, 8_292_166_656),
    ],
)
def test_parameters_of_qwen2_vl(config: dict, parameters: int) -> None:
    assert parameter_count(spec_for(config, {}, ())) == parameters


def test_what_a_tower_leaves_out_is_the_published_7b() -> None:
    """UI-TARS 1.5: transformers saved only what differs from its defaults."""
    tower = {"hidden_size": 1280, "tokens_per_second": 2, "in_chans": 3, "spatial_patch_size": 14}
    short = {**QWEN25_VL_7B, "vision_config": tower}
    assert spec_for(short, {}, ()) == spec_for(QWEN25_VL_7B, {}, ())


@pytest.mark.parametrize(
    ("device", "length", "tokens"),
    [("cpu", 4096, 1024), ("cuda", 32768, 4096), ("cpu", 600, 300), ("cuda", 4096, 2048)],
)
def test_the_largest_picture(device: str, length: int, tokens: int) -> None:
    config = EngineConfig(model=ModelConfig(max_model_len=length))
    resolution = resolve(config, spec(), {}, facts(device))
    assert resolution.config.media.image_max_tokens == tokens
    assert any(reason.field == "image_max_tokens" for reason in resolution.reasons)


def test_images_of_one_size() -> None:
    """Gemma 3's have 256 tokens: no room is planned for larger ones."""
    model = spec_for(GEMMA3_4B, {}, ())
    media = resolve(EngineConfig(), model, {}, facts()).config.media
    assert media.image_max_tokens == 256
    wider = EngineConfig(media=MediaConfig(image_max_tokens=512))
    plans = [resolve(config, model, {}, facts()).plan for config in (EngineConfig(), wider)]
    assert plans[0].activations < plans[1].activations


def test_pictures_take_memory_from_the_plan() -> None:
    plans = []
    for tokens in (64, 1024):
        config = EngineConfig(
            model=ModelConfig(max_model_len=4096), media=MediaConfig(image_max_tokens=tokens)
        )
        plans.append(resolve(config, spec(), {}, facts()).plan)
    vision = spec().vision
    assert vision is not None
    kept = kept_bytes(vision, 2048, 2, 1024 - 64)
    assert kept == 4 * (1024 - 64) * 2048 * 2 * 4
    assert plans[1].activations - plans[0].activations > kept


def test_a_tower_keeps_8_bits() -> None:
    names = {source for rule in spec().expanded_weights() for source in rule.sources}
    tensors = {name: TensorInfo(name, (64, 64), "BF16", 8192) for name in names}
    rounded = quantized_tensors(spec(), tensors, "int4")
    for name, info in rounded.items():
        if "visual" in name and name.endswith(".weight"):
            assert info.type == "Q8_0", name
    assert rounded["model.language_model.layers.3.mlp.down_proj.weight"].type == "Q4_1"


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("vision_config", {"out_hidden_size": 1024}, "out_hidden_size"),
        ("vision_config", {"num_heads": 15}, "cannot share"),
        ("vision_config", {"num_position_embeddings": 2300}, "square"),
        ("vision_config", {"deepstack_visual_indexes": [30]}, "deepstack_visual_indexes"),
        ("vision_config", {"hidden_act": "relu"}, "relu"),
        ("text_config", {"rope_scaling": {"mrope_section": [24, 20, 19]}}, "add up to 64"),
        ("text_config", {"rope_scaling": None}, "mrope_section"),
    ],
)
def test_wrong_configs_are_named(section: str, changes: dict, words: str) -> None:
    config = {**CONFIG, section: {**CONFIG[section], **changes}}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        spec_for(config, {}, ())


@pytest.mark.parametrize(
    ("base", "section", "changes", "words"),
    [
        (QWEN25_VL_7B, "vision_config", {"out_hidden_size": 1024}, "out_hidden_size"),
        (QWEN25_VL_7B, "vision_config", {"hidden_act": "gelu"}, "vision activation 'gelu'"),
        (QWEN25_VL_7B, "vision_config", {"window_size": 27}, "less than a token's 28"),
        (QWEN25_VL_7B, "vision_config", {"fullatt_block_indexes": [7, 32]}, "some of 32 layers"),
        (QWEN25_VL_7B, "vision_config", {"num_heads": 24}, "cannot share"),
        (QWEN2_VL_2B, "vision_config", {"hidden_size": 1024}, "hidden_size"),
        (QWEN2_VL_2B, "vision_config", {"embed_dim": 1281}, "cannot share"),
        (QWEN2_VL_2B, "rope_scaling", {"mrope_section": [16, 24, 23]}, "add up to 64"),
        (QWEN2_VL_2B, "rope_scaling", {"mrope_interleaved": True}, "mrope_interleaved is true"),
    ],
)
def test_wrong_configs_of_qwen2_vl_are_named(
    base: dict, section: str, changes: dict, words: str
) -> None:
    config = {**base, section: {**base[section], **changes}}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        spec_for(config, {}, ())
