"""What specs say of Gemma 4 as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeSpec
from pagoda.arch.streams import LayerInputSpec
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

# Likewise google/gemma-4-E2B-it and E4B-it, without their towers.
_SMALL = {
    **_TEXT, "attention_k_eq_v": False, "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131072, "num_attention_heads": 8, "pad_token_id": 0,
    "sliding_window": 512,
    "use_bidirectional_attention": None, "vocab_size_per_layer_input": 262144,
}  # fmt: skip
GEMMA4_E2B = {
    **_WHOLE, "vision_config": None,
    "text_config": {
        **_SMALL, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
        "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    },
}  # fmt: skip
GEMMA4_E4B = {
    **_WHOLE, "vision_config": None,
    "text_config": {
        **_SMALL, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42,
        "num_key_value_heads": 2, "num_kv_shared_layers": 18, "use_double_wide_mlp": False,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 7,
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


def test_a_tower_with_bounds():
    """Each of its linear layers has four."""
    vision = {**_VISION, "use_clipped_linears": True, "standardize": False}
    tower = spec_for({**GEMMA4_E2B, "vision_config": vision}, {}, ()).vision
    assert tower.clipped and not tower.standardized and not tower.both_ways
    rules = {rule.param: rule.sources for rule in tower.weights}
    before = "model.vision_tower.encoder.layers.{layer}.mlp.up_proj."
    part = "vision.blocks.{layer}.gate_up.parts.1."
    assert rules[part + "linear.weight"] == (before + "linear.weight",)
    bounds = ("input_min", "input_max", "output_min", "output_max")
    assert rules[part + "clip.weight"] == tuple(before + bound for bound in bounds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "vision_config.attention_bias is true"),
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
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"hidden_activation": "silu"}, "asks for the activation 'silu'"),
    ],
)
def test_what_is_not_supported_is_named(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        changed(**changes)


def test_small_models():
    spec = changed(GEMMA4_E2B)
    assert spec.layer_inputs == LayerInputSpec(256, 262144)
    widths = [layer.mlp.intermediate_size for layer in spec.layers]
    assert widths == [6144] * 15 + [12288] * 20
    back = [mixer(spec, layer).borrows for layer in range(35)]
    # Of layers with windows the last with keys of its own is 13, of global ones 14.
    assert back == [0] * 15 + [i - (14 if i % 5 == 4 else 13) for i in range(15, 35)]
    assert not any(mixer(spec, layer).values_are_keys for layer in range(35))
    assert changed(GEMMA4_E4B).layers[-1].mlp.intermediate_size == 10240
    silent = changed(GEMMA4_E4B, hidden_size_per_layer_input=None, vocab_size_per_layer_input=None)
    assert silent.layer_inputs == LayerInputSpec(256, 262144)  # Gemma4TextConfig's


def test_layers_that_borrow_cost_no_cache():
    """A token of E2B has K and V in 12 layers with windows and 3 global ones, of 35."""
    local, wide = kv_groups(changed(GEMMA4_E2B), KVLayout())
    assert (len(local.layers), len(wide.layers)) == (12, 3)
    assert local.block_bytes == 12 * 2 * 16 * 256 * 2 and wide.block_bytes == 3 * 2 * 16 * 512 * 2
    assert {owner for _, owner in local.borrowers} == {13}
    assert wide.borrowers == ((19, 14), (24, 14), (29, 14), (34, 14))
    assert len(local.borrowers) == 16


def test_keys_of_borrowers_are_left_over():
    spec = changed(GEMMA4_E2B)
    wanted = {source for rule in spec.expanded_weights() for source in rule.sources}
    attention = "model.language_model.layers.{}.self_attn.{}.weight"
    for name in ("k_proj", "v_proj", "k_norm"):
        assert attention.format(14, name) in wanted
        assert attention.format(15, name) not in wanted
        assert attention.format(15, name) in spec.ignored_weights
    assert attention.format(15, "q_proj") in wanted and attention.format(15, "q_norm") in wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers must be"),
        ({"num_kv_shared_layers": 31}, "num_kv_shared_layers is 31: of the layers in front"),
        ({"pad_token_id": 262144}, "pad_token_id must be"),
    ],
)
def test_wrong_fields_of_small_models_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        changed(GEMMA4_E2B, **changes)


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


def test_gguf_of_a_small_model():
    """A layer without values borrows, or takes its keys for them."""
    metadata = GGUF | {
        "gemma4.block_count": 4, "gemma4.attention.head_count_kv": 2,
        "gemma4.feed_forward_length": [96, 96, 192, 192],
        "gemma4.attention.sliding_window_pattern": [True, False] * 2,
        "gemma4.attention.shared_kv_layers": 2, "gemma4.embedding_length_per_layer_input": 8,
    }  # fmt: skip
    spec = spec_for(None, metadata, ["blk.0.attn_v.weight"])
    assert spec.layer_inputs == LayerInputSpec(8, 100)
    assert [mixer(spec, layer).borrows for layer in range(4)] == [0, 0, 2, 2]
    shared = [mixer(spec, layer).values_are_keys for layer in range(4)]
    assert shared == [False, True, False, False]
    assert [layer.mlp.intermediate_size for layer in spec.layers] == [96, 96, 192, 192]
    assert {"blk.2.attn_k.weight", "blk.3.attn_k_norm.weight"} <= set(spec.ignored_weights)


def test_fused_tensors_are_refused():
    with pytest.raises(UnsupportedModelError, match="q, k and v of Gemma 4 in one tensor"):
        spec_for(None, GGUF, ["blk.0.attn_qkv.weight"])


@pytest.mark.parametrize("pattern", [None, 6, [True], [1, 0]])
def test_a_wrong_pattern_of_windows_is_named(pattern):
    metadata = GGUF | {"gemma4.attention.sliding_window_pattern": pattern}
    with pytest.raises(CheckpointError, match="sliding_window_pattern must say"):
        spec_for(None, metadata, ())
