"""What specs say of Gemma 4 as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.core.kvcache.spec import KVLayout, kv_groups

_ROPE = {
    "full_attention": {
        "partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional",
    },
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip
_TEXT = {
    "attention_bias": False, "attention_k_eq_v": True, "bos_token_id": 2, "dtype": "bfloat16",
    "enable_moe_block": False, "eos_token_id": 1, "final_logit_softcapping": 30.0,
    "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0, "max_position_embeddings": 262144,
    "model_type": "gemma4_text", "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6,
    "rope_parameters": _ROPE, "sliding_window": 1024, "tie_word_embeddings": True,
    "use_bidirectional_attention": "vision", "vocab_size": 262144,
}  # fmt: skip
_VISION = {
    "head_dim": 72, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "intermediate_size": 4304, "model_type": "gemma4_vision", "num_attention_heads": 16,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "patch_size": 16,
    "pooling_kernel_size": 3, "position_embedding_size": 10240, "rms_norm_eps": 1e-6,
    "standardize": True, "use_clipped_linears": False,
}  # fmt: skip
_WHOLE = {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None,
    "boi_token_id": 255999, "dtype": "bfloat16", "eoi_token_id": 258882, "eos_token_id": [1, 106],
    "image_token_id": 258880, "model_type": "gemma4", "tie_word_embeddings": True,
    "vision_config": _VISION,
}  # fmt: skip
# As published with google/gemma-4-31B-it and gemma-4-26B-A4B-it, but for fields nobody reads.
GEMMA4_31B = {
    **_WHOLE,
    "text_config": {
        **_TEXT, "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
        "num_global_key_value_heads": 4, "num_hidden_layers": 60, "num_key_value_heads": 16,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
    },
}  # fmt: skip
GEMMA4_26B_A4B = {
    **_WHOLE,
    "text_config": {
        **_TEXT, "enable_moe_block": True, "hidden_size": 2816, "intermediate_size": 2112,
        "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
        "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8,
        "top_k_experts": 8, "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 5,
    },
}  # fmt: skip


def changed(config: dict = GEMMA4_31B, **text) -> ModelSpec:
    return spec_for({**config, "text_config": {**config["text_config"], **text}}, {}, ())


def mixer(spec: ModelSpec, layer: int) -> AttentionSpec:
    found = spec.layers[layer].mixer
    assert isinstance(found, AttentionSpec)
    return found


def test_layers():
    spec = changed()
    local, wide = mixer(spec, 4), mixer(spec, 5)
    assert (local.num_kv_heads, local.head_dim, local.window) == (16, 256, 1024)
    assert (wide.num_kv_heads, wide.head_dim, wide.window) == (4, 512, None)
    assert (local.values_are_keys, wide.values_are_keys) == (False, True)
    assert local.rope == RopeSpec(1e4, 256)
    assert wide.rope == RopeSpec(1e6, 512, num_turning=64)
    assert {local.scale, wide.scale} == {1.0}
    assert spec.logit_cap == 30.0
    # sqrt(5376) = 73.32 as bf16 has it.
    assert spec.embedding_scale == 73.5
    assert spec.eos_token_ids == (1,)
    small = changed(GEMMA4_26B_A4B)
    assert small.layers[3].experts.activation == small.layers[3].mlp.activation == "gelu_tanh"
    assert small.layers[3].experts.expert_scales and small.layers[3].sandwiched


def test_layers_as_transformers_5_saves_them():
    saved = {str(i): {"head_dim": 512, "num_key_value_heads": 4} for i in range(5, 60, 6)}
    without = {"global_head_dim": None, "num_global_key_value_heads": None}
    assert changed(per_layer_config=saved, **without).layers == changed().layers


def test_the_tower():
    spec = changed()
    tower = spec.vision
    assert (tower.num_layers, tower.head_dim, tower.merge, tower.patch_values) == (27, 72, 3, 768)
    assert tower.pooled and tower.standardized and tower.both_ways
    assert not changed(use_bidirectional_attention=None).vision.both_ways
    sources = {source for rule in tower.weights for source in rule.sources}
    assert "model.vision_tower.encoder.layers.{layer}.self_attn.v_proj.linear.weight" in sources
    blind = spec_for({**GEMMA4_31B, "vision_config": None}, {}, ())
    assert (blind.architecture, blind.vision) == ("Gemma4ForCausalLM", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_clipped_linears": True}, "vision_config.use_clipped_linears is true"),
        ({"hidden_activation": "relu"}, "vision activation 'relu'"),
        ({"head_dim": 64}, "head_dim is 64: 16 heads"),
        ({"num_key_value_heads": 4}, "num_key_value_heads must be num_attention_heads"),
        ({"pooling_kernel_size": None}, "pooling_kernel_size is missing"),
    ],
)
def test_other_towers_are_named(changes, message):
    config = {**GEMMA4_31B, "vision_config": {**_VISION, **changes}}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for(config, {}, ())


def test_groups_of_kv():
    """Global layers keep 4 heads of 512, those with windows 16 of 256: blocks of 4:10 the size."""
    local, wide = kv_groups(changed(), KVLayout())
    assert (len(local.layers), len(wide.layers)) == (50, 10)
    assert wide.block_bytes * 10 == local.block_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input is 256.*E2B"),
        ({"hidden_size_per_layer_input": None}, "hidden_size_per_layer_input is 256"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers is 20.*gemma-4-31B"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"hidden_activation": "silu"}, "asks for the activation 'silu'"),
    ],
)
def test_what_is_not_supported_is_named(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        changed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types must name"),
        ({"rope_parameters": None}, "rope_parameters must have a section"),
        ({"num_global_key_value_heads": 3}, "gives 3, which 32 heads cannot share"),
        ({"sliding_window": None}, "sliding_window is missing"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        changed(**changes)


GGUF = {
    "general.architecture": "gemma4", "gemma4.block_count": 2, "gemma4.context_length": 4096,
    "gemma4.embedding_length": 64, "gemma4.feed_forward_length": 96,
    "gemma4.attention.head_count": 4, "gemma4.attention.head_count_kv": [2, 1],
    "gemma4.attention.key_length": 32, "gemma4.attention.value_length": 32,
    "gemma4.attention.key_length_swa": 16, "gemma4.attention.sliding_window": 8,
    "gemma4.attention.sliding_window_pattern": [True, False],
    "gemma4.attention.layer_norm_rms_epsilon": 1e-6, "gemma4.rope.freq_base": 1e6,
    "gemma4.rope.freq_base_swa": 1e4, "gemma4.rope.dimension_count": 32,
    "gemma4.rope.dimension_count_swa": 16, "gemma4.final_logit_softcapping": 30.0,
    "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def test_gguf():
    spec = spec_for(None, GGUF, ["blk.0.attn_v.weight", "rope_freqs.weight"])
    local, wide = mixer(spec, 0), mixer(spec, 1)
    assert (local.head_dim, local.num_kv_heads, local.window) == (16, 2, 8)
    assert (wide.head_dim, wide.num_kv_heads, wide.window) == (32, 1, None)
    assert (local.values_are_keys, wide.values_are_keys) == (False, True)
    assert (local.rope.factors_tensor, wide.rope.factors_tensor) == (None, "rope_freqs.weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_length_per_layer_input": 256}, "embedding_length_per_layer_input is 256"),
        ({"attention.shared_kv_layers": 10}, "shared_kv_layers is 10.*E2B"),
    ],
)
def test_unsupported_gguf_metadata_is_named(changes, message):
    metadata = GGUF | {f"gemma4.{key}": value for key, value in changes.items()}
    with pytest.raises(UnsupportedModelError, match=message):
        spec_for(None, metadata, ())


def test_fused_tensors_are_refused():
    with pytest.raises(UnsupportedModelError, match="q, k and v of Gemma 4 in one tensor"):
        spec_for(None, GGUF, ["blk.0.attn_qkv.weight"])


@pytest.mark.parametrize("pattern", [None, 6, [True], [1, 0]])
def test_a_wrong_pattern_of_windows_is_named(pattern):
    metadata = GGUF | {"gemma4.attention.sliding_window_pattern": pattern}
    with pytest.raises(CheckpointError, match="sliding_window_pattern must say"):
        spec_for(None, metadata, ())
