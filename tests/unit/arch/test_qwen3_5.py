"""What specs say of Qwen3.5's configurations; numerics are compared in tests/models."""

import math

import pytest

from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec
from pagoda.base.errors import CheckpointError
from pagoda.planner.memory.tensors import parameter_count

# As published with Qwen/Qwen3.5-27B and Qwen3.6-27B, the vision tower's sizes left out.
QWEN_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "eos_token_id": 248046,
    "image_token_id": 248056, "model_type": "qwen3_5", "tie_word_embeddings": False,
    "text_config": {
        "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16",
        "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256,
        "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "num_attention_heads": 24,
        "num_hidden_layers": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default",
        },
        "tie_word_embeddings": False, "vocab_size": 248320,
    },
}  # fmt: skip

GGUF = {
    "general.architecture": "qwen35", "qwen35.block_count": 9, "qwen35.nextn_predict_layers": 1,
    "qwen35.context_length": 262144, "qwen35.embedding_length": 1024,
    "qwen35.feed_forward_length": 3584, "qwen35.attention.head_count": 8,
    "qwen35.attention.head_count_kv": 2, "qwen35.attention.key_length": 256,
    "qwen35.attention.value_length": 256, "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen35.rope.freq_base": 1e7, "qwen35.rope.dimension_count": 64,
    "qwen35.rope.dimension_sections": [11, 11, 10, 0], "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 128, "qwen35.ssm.group_count": 16, "qwen35.ssm.time_step_rank": 32,
    "qwen35.ssm.inner_size": 4096, "qwen35.full_attention_interval": 4,
    "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def _changed(**changes):
    return spec_for({**QWEN_27B, "text_config": {**QWEN_27B["text_config"], **changes}}, {}, ())


def test_layers():
    spec = _changed()
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert kinds == [DeltaNetSpec, DeltaNetSpec, DeltaNetSpec, AttentionSpec] * 16
    assert spec.layers[0].mixer == DeltaNetSpec(16, 48, 128, 128, 4)
    attention = spec.layers[3].mixer
    assert (attention.output_gate, attention.qk_norm, attention.head_dim) == (True, True, 256)
    assert (attention.rope.rotary_dim, attention.rope.theta) == (64, 1e7)
    assert _changed(layer_types=["full_attention"] * 64).layers[0].mixer == attention


def test_every_parameter_has_its_tensor():
    """851 tensors, as counted in the published text model; their sizes add up."""
    spec = _changed()
    sources = {source for rule in spec.expanded_weights() for source in rule.sources}
    assert len(sources) == 851
    assert "model.language_model.layers.62.linear_attn.in_proj_qkv.weight" in sources
    assert "model.language_model.layers.63.self_attn.q_proj.weight" in sources
    assert "model.language_model.layers.63.linear_attn.A_log" not in sources
    mlp, hidden = 3 * 5120 * 17408, 5120
    attention = hidden * (2 * 24 + 2 * 4) * 256 + 24 * 256 * hidden + 2 * 256
    channels = 2 * 16 * 128 + 48 * 128
    delta_net = (
        hidden * (channels + 48 * 128 + 48 + 48) + channels * 4 + 48 + 48 + 128 + 48 * 128 * hidden
    )
    total = 64 * (mlp + 2 * hidden) + 16 * attention + 48 * delta_net
    assert parameter_count(spec) == total + hidden + 2 * 248320 * hidden
    assert math.isclose(parameter_count(spec), 26.9e9, rel_tol=0.01)


def test_gguf():
    spec = spec_for(None, GGUF, ["output.weight", "blk.8.nextn.eh_proj.weight"])
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert kinds == [DeltaNetSpec, DeltaNetSpec, DeltaNetSpec, AttentionSpec] * 2
    assert spec.layers[0].mixer == DeltaNetSpec(16, 32, 128, 128, 4, tiled=True)
    assert spec.layers[3].mixer.rope.rotary_dim == 64
    assert "blk.8.*" in spec.ignored_weights
    sources = {source for rule in spec.expanded_weights() for source in rule.sources}
    assert {"blk.7.post_attention_norm.weight", "blk.0.ssm_a", "blk.0.ssm_dt.bias"} <= sources
    assert not any("ffn_norm" in source for source in sources)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 40}, "linear_num_value_heads is 40, which 16 key heads"),
        ({"linear_key_head_dim": None}, "linear_key_head_dim is missing"),
        ({"linear_conv_kernel_dim": 1000}, "linear_conv_kernel_dim must be between"),
        ({"layer_types": ["linear_attention"]}, "layer_types must name"),
        ({"layer_types": ["sliding_attention"] * 64}, "layer_types must name"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        _changed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nextn_predict_layers": 9}, "nextn_predict_layers is 9 of 9 layers"),
        ({"ssm.inner_size": 4095}, r"ssm\.inner_size is 4095"),
        ({"ssm.time_step_rank": 8}, "is 8, which 16 key heads"),
    ],
)
def test_wrong_gguf_metadata_is_named(changes, message):
    metadata = GGUF | {f"qwen35.{key}": value for key, value in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        spec_for(None, metadata, ())
