"""What specs say of Gemma 2 as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

# As published with google/gemma-2-27b-it, but for fields nobody reads.
GEMMA2_27B = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608, "intermediate_size": 36864,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096,
    "sliding_window_size": 4096, "torch_dtype": "bfloat16", "vocab_size": 256000,
}  # fmt: skip


def changed(**fields) -> ModelSpec:
    return spec_for({**GEMMA2_27B, **fields}, {}, ())


def mixer(spec: ModelSpec, layer: int) -> AttentionSpec:
    found = spec.layers[layer].mixer
    assert isinstance(found, AttentionSpec)
    return found


def test_layers():
    spec = changed()
    local, wide = mixer(spec, 0), mixer(spec, 1)
    assert (local.window, wide.window) == (4096, None)
    assert [layer.mixer.window for layer in spec.layers].count(None) == 23
    assert local.rope == wide.rope == RopeSpec(1e4, 128)
    assert local.scale == wide.scale == 1 / 12
    assert local.logit_cap == wide.logit_cap == 50.0
    assert not local.qk_norm and spec.layers[0].sandwiched and not spec.layers[0].scaled
    # sqrt(4608) = 67.88 as bf16 has it.
    assert (spec.embedding_scale, spec.logit_cap) == (68.0, 30.0)
    assert spec.tie_word_embeddings
    assert {rule.value for rule in spec.weights if "norm" in rule.param} == {"1 + x"}


def test_caps_may_be_left_out():
    spec = changed(attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (mixer(spec, 0).logit_cap, spec.logit_cap) == (None, None)
    older = {k: v for k, v in GEMMA2_27B.items() if "softcapping" not in k}
    spec = spec_for(older, {}, ())
    assert (mixer(spec, 0).logit_cap, spec.logit_cap) == (50.0, 30.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"use_bidirectional_attention": True}, UnsupportedModelError, "made of Gemma 2"),
        ({"hidden_activation": "gelu"}, UnsupportedModelError, "the activation 'gelu'"),
        ({"attn_logit_softcapping": 0}, CheckpointError, "attn_logit_softcapping must be between"),
        ({"sliding_window": None}, CheckpointError, "sliding_window is missing"),
    ],
)
def test_what_is_wrong_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        changed(**changes)


GGUF = {
    "general.architecture": "gemma2", "gemma2.block_count": 3, "gemma2.context_length": 8192,
    "gemma2.embedding_length": 64, "gemma2.feed_forward_length": 96,
    "gemma2.attention.head_count": 2, "gemma2.attention.head_count_kv": 1,
    "gemma2.attention.key_length": 16, "gemma2.attention.value_length": 16,
    "gemma2.attention.sliding_window": 8, "gemma2.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma2.attn_logit_softcapping": 5.0, "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def gguf(**changes) -> ModelSpec:
    metadata = GGUF | {f"gemma2.{key}": value for key, value in changes.items()}
    return spec_for(None, metadata, ["token_embd.weight"])


def test_gguf():
    spec = gguf()
    assert [mixer(spec, layer).window for layer in range(3)] == [8, None, 8]
    assert mixer(spec, 0).rope == RopeSpec(1e4, 16)
    assert (mixer(spec, 0).scale, mixer(spec, 0).logit_cap, spec.logit_cap) == (0.25, 5.0, 30.0)
    assert {rule.value for rule in spec.weights} == {"x"}
    assert mixer(gguf(block_count=46), 0).scale == 32**-0.5
    silent = {key: value for key, value in GGUF.items() if "sliding" not in key}
    assert mixer(spec_for(None, silent, ()), 0).window == 4096
