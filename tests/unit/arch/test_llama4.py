"""What specs say of Llama 4's configurations; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import QueryScaling, SharedExpert
from pagoda.base.errors import CheckpointError
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner.memory.tensors import parameter_count

# As published with Llama-4-Scout-17B-16E-Instruct, the language model's part.
SCOUT = {
    "architectures": ["Llama4ForCausalLM"], "attention_bias": False,
    "attention_chunk_size": 8192, "bos_token_id": 200000, "dtype": "bfloat16",
    "eos_token_id": [200001, 200007, 200008], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "model_type": "llama4_text", "num_attention_heads": 40, "num_experts_per_tok": 1,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "use_qk_norm": True, "vocab_size": 202048,
}  # fmt: skip
GGUF = {
    "general.architecture": "llama4", "llama4.block_count": 8, "llama4.context_length": 1048576,
    "llama4.embedding_length": 5120, "llama4.feed_forward_length": 16384,
    "llama4.attention.head_count": 40, "llama4.attention.head_count_kv": 8,
    "llama4.attention.key_length": 128, "llama4.attention.value_length": 128,
    "llama4.attention.layer_norm_rms_epsilon": 1e-5, "llama4.rope.freq_base": 5e5,
    "llama4.rope.dimension_count": 128, "llama4.expert_count": 128,
    "llama4.expert_used_count": 1, "llama4.expert_feed_forward_length": 8192,
    "llama4.interleave_moe_layer_step": 2, "tokenizer.ggml.tokens": ["x"] * 100,
}  # fmt: skip


def _scout(**changes):
    return spec_for({**SCOUT, **changes}, {}, ())


def test_scout():
    spec = _scout()
    # As transformers counts them.
    assert parameter_count(spec) == 107_769_861_120
    chunked, whole = spec.layers[2].mixer, spec.layers[3].mixer
    assert (chunked.window, chunked.chunked, chunked.qk_unit) == (8192, True, True)
    assert (whole.window, whole.chunked, whole.qk_unit, whole.rope) == (None, False, False, None)
    assert chunked.query_scaling is None
    assert whole.query_scaling == QueryScaling(0.1, 8192, offset=1)
    experts = spec.layers[0].experts
    assert experts.shared == SharedExpert(8192) and experts.weighs_inputs
    assert [group.window for group in kv_groups(spec, KVLayout())] == [8192, None]


def test_layers():
    spec = _scout(interleave_moe_layer_step=2, no_rope_layers=[1] * 47 + [0], use_qk_norm=False)
    assert [layer.experts is None for layer in spec.layers] == [True, False] * 24
    assert spec.layers[0].mlp.intermediate_size == 16384
    assert [layer.mixer.rope is None for layer in spec.layers] == [False] * 47 + [True]
    assert not spec.layers[0].mixer.qk_unit
    kinds = ["full_attention"] * 24 + ["chunked_attention"] * 24
    windows = [layer.mixer.window for layer in _scout(layer_types=kinds).layers]
    assert windows == [None] * 24 + [8192] * 24


def test_gguf():
    spec = spec_for(None, GGUF, ["output.weight"])
    assert [layer.experts is None for layer in spec.layers] == [True, False] * 4
    assert [layer.mixer.window for layer in spec.layers] == [8192, 8192, 8192, None] * 2
    assert not spec.layers[0].mixer.qk_unit
    assert spec_for(None, {**GGUF, "llama4.expert_count": 16}, ()).layers[0].mixer.qk_unit
    whole = spec_for(None, {**GGUF, "llama4.attention.sliding_window": 0}, ())
    assert all(x.mixer.window is None and x.mixer.rope is not None for x in whole.layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers must list 0 or 1 for each of 48"),
        ({"moe_layers": [48]}, "moe_layers must list some of 48 layers"),
        ({"layer_types": ["sliding_attention"] * 48}, "must name full_attention or chunked"),
        ({"intermediate_size_mlp": None}, "intermediate_size_mlp is missing"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        _scout(**changes)
