"""What specs say of Gemma 3 as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeScaling, RopeSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

# As published with google/gemma-3-1b-it and gemma-3-27b-it, but for fields nobody reads.
GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": [1, 106],
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}  # fmt: skip
_VISION = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
    "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_WHOLE = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "mm_tokens_per_image": 256, "model_type": "gemma3", "torch_dtype": "bfloat16",
    "vision_config": _VISION,
}  # fmt: skip
GEMMA3_4B = {
    **_WHOLE,
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}  # fmt: skip
GEMMA3_27B = {
    **_WHOLE,
    "text_config": {
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
}  # fmt: skip


def changed(**fields) -> ModelSpec:
    return spec_for({**GEMMA3_1B, **fields}, {}, ())


def mixer(spec: ModelSpec, layer: int) -> AttentionSpec:
    found = spec.layers[layer].mixer
    assert isinstance(found, AttentionSpec)
    return found


def test_layers():
    spec = changed()
    local, wide = mixer(spec, 4), mixer(spec, 5)
    assert (local.window, wide.window) == (512, None)
    assert [layer.mixer.window for layer in spec.layers].count(None) == 4
    assert (local.rope, wide.rope) == (RopeSpec(1e4, 256), RopeSpec(1e6, 256))
    assert local.scale == wide.scale == 1 / 16
    assert local.qk_norm and not local.value_norm
    layer = spec.layers[0]
    assert layer.sandwiched and not layer.scaled and layer.mlp.activation == "gelu_tanh"
    # sqrt(1152) = 33.94 as bf16 has it.
    assert (spec.embedding_scale, spec.logit_cap) == (34.0, None)
    assert spec.tie_word_embeddings and spec.max_position == 32768
    assert {rule.value for rule in spec.weights if "norm" in rule.param} == {"1 + x"}
    assert {rule.value for rule in spec.weights if "norm" not in rule.param} == {"x"}


def test_what_large_models_leave_out():
    spec = spec_for(GEMMA3_4B, {}, ())
    local, wide = mixer(spec, 4), mixer(spec, 5)
    assert (wide.num_heads, wide.num_kv_heads, wide.head_dim) == (8, 4, 256)
    assert (spec.vocab_size, spec.max_position, spec.bos_token_id) == (262208, 131072, 2)
    assert local.rope == RopeSpec(1e4, 256)
    assert wide.rope == RopeSpec(1e6, 256, RopeScaling("linear", 8.0, 131072))
    assert spec.eos_token_ids == (1, 106)
    assert mixer(spec_for(GEMMA3_27B, {}, ()), 0).scale == 168**-0.5


def test_layers_as_transformers_5_saves_them():
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2
    old = dict.fromkeys(("rope_theta", "rope_local_base_freq", "sliding_window_pattern"))
    assert changed(rope_parameters=ropes, layer_types=kinds, **old).layers == changed().layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": True}, "an encoder made of Gemma 3"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0.*Gemma 2 does"),
        ({"hidden_activation": "silu"}, "asks for the activation 'silu'"),
        ({"architectures": ["Gemma3TextModel"]}, "of a Gemma3TextModel is not true. Known is"),
    ],
)
def test_what_is_not_supported_is_named(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        changed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types must name"),
        ({"rope_parameters": {"full_attention": {}}}, "must have a section sliding_attention"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern must be between"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        changed(**changes)


GGUF = {
    "general.architecture": "gemma3", "gemma3.block_count": 7, "gemma3.context_length": 4096,
    "gemma3.embedding_length": 64, "gemma3.feed_forward_length": 96,
    "gemma3.attention.head_count": 2, "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 16, "gemma3.attention.value_length": 16,
    "gemma3.attention.sliding_window": 8, "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 8.0, "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def gguf(**changes) -> ModelSpec:
    metadata = GGUF | {f"gemma3.{key}": value for key, value in changes.items()}
    return spec_for(None, metadata, ["token_embd.weight"])


def test_gguf():
    spec = gguf()
    assert [mixer(spec, layer).window for layer in range(7)] == [8] * 5 + [None, 8]
    assert mixer(spec, 0).rope == RopeSpec(1e4, 16)
    assert mixer(spec, 5).rope == RopeSpec(1e6, 16, RopeScaling("linear", 8.0, 4096))
    assert mixer(spec, 0).scale == 1 / 4 and spec.max_position == 4096
    assert {rule.value for rule in spec.weights} == {"x"}
    assert mixer(gguf(block_count=62), 0).scale == 32**-0.5
    windows = {"attention.sliding_window_pattern": [True, False] * 3 + [True]}
    assert [layer.mixer.window for layer in gguf(**windows).layers] == [8, None] * 3 + [8]
    whole = gguf(**{"attention.sliding_window": None})
    assert {layer.mixer.window for layer in whole.layers} == {None}


def test_a_wrong_pattern_of_windows_is_named():
    with pytest.raises(CheckpointError, match="sliding_window_pattern must say"):
        gguf(**{"attention.sliding_window_pattern": [True]})


def test_the_tower():
    spec = spec_for(GEMMA3_27B, {}, ())
    tower = spec.vision
    assert (tower.num_layers, tower.head_dim, tower.merge, tower.patch_values) == (27, 72, 4, 588)
    assert tower.num_positions == 4096 and tower.rope_theta == 0
    assert tower.pooled and tower.both_ways and not tower.gated
    assert all(layer.mixer.both_ways for layer in spec.layers)
    sources = {source for rule in tower.weights for source in rule.sources}
    published = "vision_tower.vision_model.encoder.layers.{layer}.mlp.fc1.weight"
    newer = published.replace("vision_model.", "")
    assert published in sources
    first = "vision_tower.embeddings.patch_embedding.weight"
    tower = spec_for(GEMMA3_27B, {}, [first]).vision
    assert newer in {source for rule in tower.weights for source in rule.sources}
    blind = spec_for({**GEMMA3_27B, "vision_config": None}, {}, ())
    assert (blind.architecture, blind.vision) == ("Gemma3ForCausalLM", None)
    assert not any(layer.mixer.both_ways for layer in blind.layers)


@pytest.mark.parametrize(
    ("changes", "tokens", "message"),
    [
        ({"patch_size": 16}, 256, "patches of 16 pixels"),
        ({"hidden_act": "relu"}, 256, "with 'relu'"),
        ({"model_type": "clip_vision_model"}, 256, "is a 'clip_vision_model'"),
        ({"num_attention_heads": 7}, 256, "hidden_size is 1152, which 7 heads"),
        ({}, 255, "mm_tokens_per_image is 255, which do not make up 64 x 64"),
        ({"image_size": 910}, 256, "do not make up 65 x 65"),
    ],
)
def test_other_towers_are_named(changes, tokens, message):
    tower = {**_VISION, **changes}
    config = {**GEMMA3_4B, "vision_config": tower, "mm_tokens_per_image": tokens}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for(config, {}, ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.projector_type": "gemma4v"}, "is a 'gemma4v', and Gemma 3's"),
        ({"clip.vision.projection_dim": 65}, "projection_dim must be the language model's 64"),
        ({"clip.vision.image_size": 70}, "gives 5 patches a side, no multiple of 4"),
    ],
)
def test_towers_of_other_ggufs_are_named(changes, message):
    tower = {
        "clip.projector_type": "gemma3", "clip.vision.projection_dim": 64,
        "clip.vision.image_size": 56, "clip.vision.patch_size": 14,
        "clip.vision.embedding_length": 32, "clip.vision.attention.head_count": 2,
        "clip.vision.block_count": 2, "clip.vision.feed_forward_length": 48,
    }  # fmt: skip
    assert spec_for(None, GGUF | tower, ()).vision.merge == 4
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for(None, GGUF | tower | changes, ())
