"""What specs say of configurations as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

# As published with meta-llama/Llama-3.1-8B-Instruct.
LLAMA_3_1_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}  # fmt: skip

# As published with Qwen/Qwen2.5-7B-Instruct, with the YaRN lines its README adds.
QWEN_2_5_7B = {
    "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 152064,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
}  # fmt: skip

# The metadata of Qwen3-0.6B as llama.cpp converts it.
QWEN3_GGUF = {
    "general.architecture": "qwen3", "qwen3.block_count": 28, "qwen3.context_length": 40960,
    "qwen3.embedding_length": 1024, "qwen3.feed_forward_length": 3072,
    "qwen3.attention.head_count": 16, "qwen3.attention.head_count_kv": 8,
    "qwen3.rope.freq_base": 1000000.0, "qwen3.attention.layer_norm_rms_epsilon": 1e-06,
    "qwen3.attention.key_length": 128, "qwen3.attention.value_length": 128,
    "tokenizer.ggml.tokens": ["x"] * 151936, "tokenizer.ggml.eos_token_id": 151645,
    "tokenizer.ggml.bos_token_id": 151643,
}  # fmt: skip


def _llama(**changes) -> ModelSpec:
    return spec_for({**LLAMA_3_1_8B, **changes}, {}, ())


def _sources(spec: ModelSpec) -> set[str]:
    return {source for rule in spec.weights for source in rule.sources}


def test_llama_3():
    spec = _llama()
    attention = spec.layers[0].mixer
    assert (spec.architecture, len(spec.layers), spec.dtype) == ("LlamaForCausalLM", 32, "bfloat16")
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (32, 8, 128)
    assert attention.scale == pytest.approx(0.08838834764)
    assert attention.rope.theta == 500000.0
    assert attention.rope.scaling.kind == "llama3"
    assert spec.max_position == 131072  # llama3 configs state the stretched length
    assert spec.eos_token_ids == (128001, 128008, 128009)
    assert spec.bos_token_id == 128000
    assert "lm_head.weight" in _sources(spec)
    assert not any(source.endswith(".bias") for source in _sources(spec))


def test_qwen2_with_yarn():
    spec = spec_for(QWEN_2_5_7B, {}, ())
    attention = spec.layers[-1].mixer
    assert attention.rope.scaling.kind == "yarn"
    assert attention.rope.scaling.attention_factor == pytest.approx(1.1386294361)
    assert spec.max_position == 131072
    assert attention.qkv_bias
    assert not attention.output_bias
    assert attention.window is None  # use_sliding_window is false


def test_qwen3_gguf():
    spec = spec_for(None, QWEN3_GGUF, ["token_embd.weight"])
    attention = spec.layers[0].mixer
    assert spec.architecture == "Qwen3ForCausalLM"
    assert (attention.head_dim, attention.qk_norm, attention.rope.rotary_dim) == (128, True, 128)
    assert spec.vocab_size == 151936
    assert spec.tie_word_embeddings  # no output.weight
    assert all(rule.unpermute == () for rule in spec.weights)


def test_llama_gguf_is_permuted_and_may_vary_by_layer():
    metadata = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 2048,
        "llama.embedding_length": 64, "llama.feed_forward_length": [96, 128],
        "llama.attention.head_count": [4, 4], "llama.attention.head_count_kv": [4, 2],
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 99,
        "llama.rope.dimension_count": 16, "llama.rope.scaling.factor": 2.0,
    }  # fmt: skip
    names = ["output.weight", "rope_freqs.weight", "blk.0.attn_q.bias"]
    spec = spec_for(None, metadata, names)
    assert [layer.mixer.num_kv_heads for layer in spec.layers] == [4, 2]
    assert [layer.mlp.intermediate_size for layer in spec.layers] == [96, 128]
    assert spec.vocab_size == 99
    assert not spec.tie_word_embeddings
    rope = spec.layers[0].mixer.rope
    assert (rope.factors_tensor, rope.scaling.kind) == ("rope_freqs.weight", "linear")
    qkv = {rule.param: rule.unpermute for rule in spec.weights if ".qkv." in rule.param}
    assert qkv == {
        "layers.{layer}.attention.qkv.weight": (16, 16, 0),
        "layers.{layer}.attention.qkv.bias": (16, 16, 0),
    }


def test_head_dim_overrides_and_old_names():
    assert _llama(head_dim=64).layers[0].mixer.head_dim == 64
    assert _llama(rope_scaling={"type": "linear", "factor": 2.0}).max_position == 262144
    assert _llama(torch_dtype=None, dtype="float16").dtype == "float16"
    modern = _llama(
        rope_theta=None, rope_scaling=None,
        rope_parameters={"rope_type": "default", "rope_theta": 7e4},
    )  # fmt: skip
    assert modern.layers[0].mixer.rope.theta == 7e4
    assert modern.layers[0].mixer.rope.scaling is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": -1}, "hidden_size must be between"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number"),
        ({"hidden_size": 4095}, "hidden_size is 4095, which 32 heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be between"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, which 32 heads"),
        ({"vocab_size": 1 << 40}, "vocab_size must be between"),
        ({"head_dim": 7}, "must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be between"),
        ({"rope_theta": 0.5}, "rope_theta must be between"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor must be between"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1]}}, "must list 64 numbers"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id must be a whole number"),
        ({"architectures": []}, "architectures must list one class name"),
        ({"architectures": None}, "architectures must list one class name"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        _llama(**changes)
    assert not isinstance(caught.value, UnsupportedModelError)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LamaForCausalLM"]}, "nearest known is 'LlamaForCausalLM'"),
        ({"architectures": ["Qwen3XForCausalLM"]}, "nearest known is 'Qwen3ForCausalLM'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "type 'ntk'"),
        ({"torch_dtype": "int4"}, "dtype 'int4'"),
        ({"quantization_config": {"quant_method": "hqq"}}, r"quantized by 'hqq'.*awq"),
    ],
)
def test_what_is_not_supported_is_named(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        _llama(**changes)


@pytest.mark.parametrize("tokens", [7, "abc", [1, 2]])
def test_a_gguf_whose_tokens_are_no_texts_is_refused(tokens) -> None:
    with pytest.raises(CheckpointError, match="tokenizer.ggml.tokens must be a list of texts"):
        spec_for(None, {**QWEN3_GGUF, "tokenizer.ggml.tokens": tokens}, ())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "qwen3x"}, UnsupportedModelError, "nearest known is 'qwen3'"),
        ({"general.architecture": 7}, CheckpointError, "architecture must be a text, not 7"),
        ({"qwen3.block_count": 0}, CheckpointError, r"qwen3\.block_count must be between"),
        ({"qwen3.attention.head_count": [16]}, CheckpointError, "lists 1 values for 28 layers"),
        ({"qwen3.attention.value_length": 64}, CheckpointError, "value_length is 64"),
        ({"qwen3.rope.scaling.type": "longrope"}, UnsupportedModelError, "type 'longrope'"),
        ({"qwen3.rope.scaling.factor": -2.0}, CheckpointError, r"scaling\.factor must be between"),
        ({"qwen3.rope.freq_base": float("nan")}, CheckpointError, r"rope\.freq_base"),
        ({"tokenizer.ggml.eos_token_id": -3}, CheckpointError, "eos_token_id"),
    ],
)
def test_wrong_gguf_metadata_is_named(changes, error, message):
    changes = {"qwen3.rope.scaling.factor": 2.0, **changes}
    with pytest.raises(error, match=message):
        spec_for(None, {**QWEN3_GGUF, **changes}, ())


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 3.0}, 3.0),
        ({"rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    ],
)
def test_linear_scaling_in_gguf(values, factor):
    metadata = QWEN3_GGUF | {f"qwen3.{key}": value for key, value in values.items()}
    scaling = spec_for(None, metadata, ()).layers[0].mixer.rope.scaling
    assert (scaling and scaling.factor) == factor


def test_what_mistral3_is_not():
    config = {"architectures": ["Mistral3ForConditionalGeneration"]}
    with pytest.raises(UnsupportedModelError, match=r"'mistral4', which is.*Ministral 3"):
        spec_for({**config, "text_config": {"model_type": "mistral4"}}, {}, ())


# Mistral Small 3.1's tower, of mistralai/Mistral-Small-3.1-24B-Instruct-2503.
PIXTRAL = {
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540,
    "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16,
    "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0,
}  # fmt: skip
MISTRAL_SMALL = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
    "vision_feature_layer": -1, "vision_config": PIXTRAL,
    "text_config": {
        "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768, "model_type": "mistral",
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1e9, "vocab_size": 131072,
    },
}  # fmt: skip


def test_mistral_small_sees():
    spec = spec_for(MISTRAL_SMALL, {}, ())
    assert (spec.vision.patch_values, spec.vision.merge, spec.vision.head_dim) == (588, 2, 64)
    assert spec_for({**MISTRAL_SMALL, "vision_config": None}, {}, ()).vision is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_feature_layer": -2}, "whose layer -2 is read"),
        ({"projector_hidden_act": "relu"}, "vision activation 'relu'"),
        ({"vision_config": {**PIXTRAL, "model_type": "clip"}}, "is a 'clip'"),
        ({"vision_config": {**PIXTRAL, "num_attention_heads": 15}}, "15 heads cannot share"),
    ],
)
def test_other_towers_of_mistral_are_named(changes, message):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for({**MISTRAL_SMALL, **changes}, {}, ())


# As published with tencent/Hunyuan-A13B-Instruct, but for fields nobody reads.
HUNYUAN_A13B = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": False, "hidden_size": 4096,
    "intermediate_size": 3072, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32, "num_experts": 64,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_shared_expert": [1] * 32,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cla": False,
    "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}, "vocab_size": 128167,
}  # fmt: skip


def test_hunyuan():
    spec = spec_for(HUNYUAN_A13B, {}, ())
    mixer, experts = spec.layers[0].mixer, spec.layers[0].experts
    # llama.cpp's number (conversion/hunyuan.py).
    assert mixer.rope.theta == pytest.approx(11158839.9251) and mixer.rope.scaling is None
    assert mixer.qk_norm and mixer.qk_norm_turned and mixer.head_dim == 128
    assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (64, 8, 3072)
    assert experts.renormalize and experts.shared.intermediate_size == 3072
    sources = {source for rule in spec.weights for source in rule.sources}
    assert "model.layers.{layer}.self_attn.query_layernorm.weight" in sources


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_cla": True}, "use_cla is true"),
        ({"moe_topk": [8] * 31 + [4]}, "moe_topk differs between layers"),
        ({"num_shared_expert": 2}, "num_shared_expert is 2.*it is 1"),
        ({"moe_intermediate_size": [1024] * 32}, "in Hunyuan A13B it is 3072"),
    ],
)
def test_other_hunyuans_are_named(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        spec_for({**HUNYUAN_A13B, **changes}, {}, ())


def test_layer_windows():
    def windows(**changes):
        spec = spec_for({**QWEN_2_5_7B, "use_sliding_window": True, **changes}, {}, ())
        return [layer.mixer.window for layer in spec.layers]

    assert windows(max_window_layers=26, sliding_window=64) == [None] * 26 + [64] * 2
    assert windows(sliding_window=None) == [None] * 28
    kinds = ["sliding_attention", "full_attention"] * 14
    assert windows(layer_types=kinds, sliding_window=64) == [64, None] * 14
    with pytest.raises(CheckpointError, match="layer_types must name"):
        windows(layer_types=kinds[1:])
    with pytest.raises(CheckpointError, match="layer_types must name"):
        windows(layer_types=["linear_attention"] * 28)


def test_nothing_to_go_by():
    with pytest.raises(CheckpointError, match=r"neither a config\.json"):
        spec_for(None, {}, ())
