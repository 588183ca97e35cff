"""What specs say of Gemma 3n as published; numerics are compared in tests/models."""

import math

import pytest

from pagoda.arch.mobilenet import EdgeBlock, InvertedBlock, QueryBlock
from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeSpec
from pagoda.arch.streams import AltUpSpec, LayerInputSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.core.kvcache.spec import KVLayout, kv_groups

_TEXT = {
    "activation_sparsity_pattern": [*[0.95] * 10, *[0.0] * 20], "altup_active_idx": 0,
    "altup_correct_scale": True, "altup_num_inputs": 4, "attention_bias": False,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2048, "hidden_size_per_layer_input": 256, "intermediate_size": 8192,
    "laurel_rank": 64, "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 6,
    "max_position_embeddings": 32768, "model_type": "gemma3n_text", "num_attention_heads": 8,
    "num_hidden_layers": 30, "num_key_value_heads": 2, "num_kv_shared_layers": 10,
    "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
    "vocab_size": 262400, "vocab_size_per_layer_input": 262144,
}  # fmt: skip
# As published with google/gemma-3n-E2B-it and E4B-it, but for fields nobody reads.
GEMMA3N_E2B = {
    "architectures": ["Gemma3nForConditionalGeneration"], "eos_token_id": [1, 106],
    "model_type": "gemma3n", "text_config": _TEXT, "audio_config": {"hidden_size": 1536},
    "vision_config": {"architecture": "mobilenetv5_300m_enc", "hidden_size": 2048},
}  # fmt: skip
GEMMA3N_E4B = {
    **GEMMA3N_E2B,
    "text_config": {
        **_TEXT, "activation_sparsity_pattern": [*[0.95] * 10, *[0.0] * 25],
        "intermediate_size": [16384] * 35, "num_hidden_layers": 35, "num_kv_shared_layers": 15,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    },
}  # fmt: skip


def changed(config: dict = GEMMA3N_E4B, **text) -> ModelSpec:
    return spec_for({**config, "text_config": {**config["text_config"], **text}}, {}, ())


def mixer(spec: ModelSpec, layer: int) -> AttentionSpec:
    found = spec.layers[layer].mixer
    assert isinstance(found, AttentionSpec)
    return found


def test_layers():
    spec = changed()
    assert spec.architecture == "Gemma3nForCausalLM" and spec.vision is not None
    assert spec.altup == AltUpSpec(4, 64, True)
    assert spec.layer_inputs == LayerInputSpec(256, 262144)
    local, wide = mixer(spec, 0), mixer(spec, 4)
    assert (local.window, wide.window) == (512, None)
    assert (local.rope, wide.rope) == (RopeSpec(1e4, 256), RopeSpec(1e6, 256))
    assert local.scale == 1.0 and local.value_norm and spec.logit_cap == 30.0
    cuts = [layer.mlp.cut for layer in spec.layers]
    assert cuts[:10] == [pytest.approx(1.6448536)] * 10 and cuts[10:] == [None] * 25
    back = [mixer(spec, layer).borrows for layer in range(35)]
    assert back == [0] * 20 + [i - (19 if i % 5 == 4 else 18) for i in range(20, 35)]
    assert changed(activation_sparsity_pattern=None).layers == spec.layers
    # What a file leaves out is as Gemma3nTextConfig has it.
    left_out = ("num_kv_shared_layers", "laurel_rank", "altup_num_inputs", "altup_correct_scale")
    text = {key: x for key, x in GEMMA3N_E4B["text_config"].items() if key not in left_out}
    assert spec_for({**GEMMA3N_E4B, "text_config": text}, {}, ()) == spec


def test_layers_that_borrow_cost_no_cache():
    local, wide = kv_groups(changed(), KVLayout())
    assert (len(local.layers), len(wide.layers)) == (16, 4)
    assert (len(local.borrowers), len(wide.borrowers)) == (12, 3)


def test_the_tower_for_sound_is_left_out():
    patterns = changed().ignored_weights
    assert "model.audio_tower.*" in patterns and "model.vision_tower.*" not in patterns
    assert "model.language_model.layers.20.self_attn.k_proj.weight" in patterns
    blind = spec_for({**GEMMA3N_E4B, "vision_config": None}, {}, ())
    assert blind.vision is None and "model.vision_tower.*" in blind.ignored_weights


def test_the_tower_for_pictures():
    vision = changed().vision
    assert vision is not None and vision.mobile_net is not None
    assert vision.image_tokens == 257 and not vision.both_ways
    mobile = vision.mobile_net
    assert [len(stage) for stage in mobile.stages] == [3, 5, 37, 39]
    assert [stage[-1].channels for stage in mobile.stages] == [128, 256, 640, 1280]
    assert (mobile.stem, mobile.inner, mobile.side_unit, mobile.end_word) == (64, 3840, 256, 0)
    assert mobile.stages[0][0] == EdgeBlock(64, 256, 128, 3, 2)
    assert mobile.stages[1][0] == InvertedBlock(128, 768, 256, 3, 5, 2)
    assert mobile.stages[2][9] == QueryBlock(640, 12, 64, 2, 3)
    assert mobile.stages[3][1] == QueryBlock(1280, 16, 96, 1, 3)
    sources = {rule.sources[0] for rule in vision.weights}
    assert "model.vision_tower.timm_model.blocks.2.9.attn.key.down_conv.weight" in sources
    assert "model.vision_tower.timm_model.blocks.3.1.attn.key.down_conv.weight" not in sources


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architecture": "resnet50"}, UnsupportedModelError, "tower is a 'resnet50'"),
        ({"hidden_size": 1024}, UnsupportedModelError, "of width 1024"),
        ({"model_args": {"pad_type": ""}}, UnsupportedModelError, "model_args has 'pad_type'"),
        ({"vocab_offset": 262150}, CheckpointError, "eoi_token_id must be one of the tokens"),
    ],
)
def test_another_tower_is_named(changes, error, message):
    tower = {**GEMMA3N_E2B["vision_config"], **changes}
    with pytest.raises(error, match=message):
        spec_for({**GEMMA3N_E2B, "vision_config": tower}, {}, ())


def test_a_tower_of_other_tokens_is_named():
    with pytest.raises(UnsupportedModelError, match="makes 64 tokens of a picture"):
        spec_for({**GEMMA3N_E2B, "vision_soft_tokens_per_image": 64}, {}, ())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"altup_active_idx": 1}, UnsupportedModelError, "altup_active_idx is 1"),
        ({"altup_num_inputs": 9}, CheckpointError, "altup_num_inputs must be between 2 and 8"),
        ({"hidden_activation": "silu"}, UnsupportedModelError, "activation 'silu'"),
        ({"activation_sparsity_pattern": [0.5]}, CheckpointError, "must list 35 shares"),
        ({"activation_sparsity_pattern": [1.0] * 35}, CheckpointError, "each below 1"),
        ({"intermediate_size": [1, 2]}, CheckpointError, "lists 2 values for 35 layers"),
        ({"num_kv_shared_layers": 35}, CheckpointError, "num_kv_shared_layers must be"),
        ({"hidden_size_per_layer_input": 0}, UnsupportedModelError, "per_layer_input is 0"),
    ],
)
def test_what_is_not_supported_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        changed(**changes)


GGUF = {
    "general.architecture": "gemma3n", "gemma3n.block_count": 4, "gemma3n.context_length": 4096,
    "gemma3n.embedding_length": 64, "gemma3n.feed_forward_length": [96, 96, 64, 64],
    "gemma3n.attention.head_count": 4, "gemma3n.attention.head_count_kv": 2,
    "gemma3n.attention.key_length": 16, "gemma3n.attention.value_length": 16,
    "gemma3n.attention.sliding_window": 8, "gemma3n.attention.shared_kv_layers": 2,
    "gemma3n.attention.sliding_window_pattern": [True, False] * 2,
    "gemma3n.attention.layer_norm_rms_epsilon": 1e-6, "gemma3n.rope.freq_base": 1e6,
    "gemma3n.altup.active_idx": 0, "gemma3n.altup.num_inputs": 4,
    "gemma3n.embedding_length_per_layer_input": 8, "gemma3n.final_logit_softcapping": 30.0,
    "gemma3n.activation_sparsity_scale": [1.5, -math.inf, -math.inf, 0.5],
    "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def test_gguf():
    spec = spec_for(None, GGUF, ())
    assert spec.altup == AltUpSpec(4, 64) and spec.layer_inputs == LayerInputSpec(8, 100)
    assert [layer.mlp.cut for layer in spec.layers] == [1.5, None, None, 0.5]
    assert [layer.mlp.intermediate_size for layer in spec.layers] == [96, 96, 64, 64]
    assert [mixer(spec, layer).borrows for layer in range(4)] == [0, 0, 2, 2]
    assert mixer(spec, 0).rope == RopeSpec(1e4, 16)


@pytest.mark.parametrize("scale", [None, [1.0], [1.0, 1.0, 1.0, math.inf], [1, 1, 1, 1]])
def test_a_wrong_scale_of_sparsity_is_named(scale):
    with pytest.raises(CheckpointError, match="activation_sparsity_scale must list 4 numbers"):
        spec_for(None, GGUF | {"gemma3n.activation_sparsity_scale": scale}, ())
