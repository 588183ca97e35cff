"""What specs say of mixtures of experts as published; numerics are compared in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ClampedSwiglu, ModelSpec, SharedExpert
from pagoda.base.errors import CheckpointError
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.memory.weights import held_weights
from pagoda.planner.quantization import quantized_tensors
from pagoda.weights.checkpoint import TensorInfo

# As published with Qwen/Qwen3-30B-A3B.
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip

# As published with Qwen/Qwen3.5-35B-A3B and Qwen3.6-35B-A3B, the language model's part.
QWEN_35B_A3B = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "attention_bias": False, "dtype": "bfloat16",
    "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 2048, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default",
    },
    "vocab_size": 248320,
}  # fmt: skip

# As published with openai/gpt-oss-20b, layer_types left out.
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False,
    },
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip


def _qwen3(**changes) -> ModelSpec:
    return spec_for({**QWEN3_30B_A3B, **changes}, {}, ())


def _gpt_oss(**changes) -> ModelSpec:
    return spec_for({**GPT_OSS_20B, **changes}, {}, ())


def test_qwen3_5_moe():
    spec = spec_for(QWEN_35B_A3B, {}, ())
    experts = spec.layers[0].experts
    assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (256, 8, 512)
    assert experts.renormalize and experts.shared == SharedExpert(512, gated=True)
    # As transformers counts them.
    assert parameter_count(spec) == 34_660_610_688


def test_tensors_of_experts_as_the_checkpoint_has_them():
    """One of each expert or one of all, whichever are there."""
    prefix = "model.layers.0.mlp.experts."
    names = [prefix + "gate_up_proj", prefix + "down_proj"]

    def found(tensors) -> dict[str, tuple]:
        spec = spec_for(QWEN_35B_A3B, {}, tensors)
        rules = {rule.param: rule for rule in spec.expanded_weights()}
        kinds = [rules[f"layers.0.mlp.{name}.weight"] for name in ("gate_up", "down")]
        return [(rule.sources[0], rule.experts.layout) for rule in kinds]

    singles = [prefix + f"0.{name}_proj.weight" for name in ("gate", "down")]
    assert found(()) == [(name, "single") for name in singles]
    assert found(names) == [(name, "stacked") for name in names]
    assert found(singles) == [(name, "single") for name in singles]


def test_qwen3_moe():
    spec = _qwen3()
    experts = spec.layers[7].experts
    assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (128, 8, 768)
    assert experts.scoring == "softmax" and experts.renormalize
    assert spec.layers[7].mlp is None
    # Half the bytes of its safetensors index.
    assert parameter_count(spec) == 61_064_245_248 // 2
    rules = {rule.param: rule for rule in spec.expanded_weights()}
    gate_up = rules["layers.47.mlp.gate_up.weight"].sources
    assert gate_up[:2] == tuple(
        f"model.layers.47.mlp.experts.0.{name}_proj.weight" for name in ("gate", "up")
    )
    assert len(gate_up) == 256 and gate_up[-1].endswith("experts.127.up_proj.weight")
    assert "layers.0.mlp.down.weight" in rules
    assert not any("{" in source for rule in rules.values() for source in rule.sources)


def test_dense_layers_among_sparse_ones():
    spec = _qwen3(mlp_only_layers=[1], decoder_sparse_step=2, num_hidden_layers=6)
    sparse = [index for index, layer in enumerate(spec.layers) if layer.experts is not None]
    assert sparse == [3, 5]
    assert all((layer.mlp is None) != (layer.experts is None) for layer in spec.layers)
    params = {rule.param for rule in spec.expanded_weights()}
    assert {"layers.1.mlp.gate_up.weight", "layers.3.mlp.router.weight"} <= params
    assert "layers.1.mlp.router.weight" not in params


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ({"num_experts": 0}, "num_experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers"),
    ],
)
def test_wrong_fields_are_named(changes, named):
    with pytest.raises(CheckpointError, match=named):
        _qwen3(**changes)


def test_gpt_oss():
    spec = _gpt_oss()
    attention, experts = spec.layers[0].mixer, spec.layers[0].experts
    assert attention.sinks and attention.qkv_bias and attention.output_bias
    assert [layer.mixer.window for layer in spec.layers[:4]] == [128, None, 128, None]
    assert not attention.rope.scaling.truncate
    assert attention.rope.scaling.attention_factor == pytest.approx(1.3465735903)
    assert spec.max_position == 131072
    assert experts.scoring == "topk_softmax" and experts.bias
    assert experts.clamped == ClampedSwiglu(1.702, 7.0)
    groups = kv_groups(spec, KVLayout())
    assert [(group.kind, group.window, len(group.layers)) for group in groups] == [
        ("sliding", 128, 12), ("full", None, 12),
    ]  # fmt: skip


def test_gpt_oss_has_the_parameters_of_its_model_card():
    """Table 1: 20.91B and 116.83B."""
    assert round(parameter_count(_gpt_oss()) / 1e9, 2) == 20.91
    large = _gpt_oss(num_hidden_layers=36, num_local_experts=128)
    assert round(parameter_count(large) / 1e9, 2) == 116.83


def _shapes(spec: ModelSpec, storages: dict[str, str]) -> dict[str, TensorInfo]:
    """One layer's experts, as gpt-oss's files have them."""
    experts = spec.layers[0].experts
    count, size, hidden = experts.num_experts, experts.intermediate_size, spec.hidden_size
    prefix = "model.layers.0.mlp."
    shapes = {
        "router.weight": (count, hidden), "experts.gate_up_proj": (count, 2 * size, hidden),
        "experts.gate_up_proj_bias": (count, 2 * size), "experts.down_proj": (count, hidden, size),
    }  # fmt: skip
    infos = {}
    for name, shape in shapes.items():
        elements = 1
        for number in shape:
            elements *= number
        storage = storages.get(name, "BF16")
        nbytes = elements * 17 // 32 if storage == "MXFP4" else 2 * elements
        infos[prefix + name] = TensorInfo(prefix + name, shape, storage, nbytes)
    return infos


def test_weights_are_counted_as_they_are_held():
    spec = _gpt_oss()
    kinds = dict.fromkeys(("experts.gate_up_proj", "experts.down_proj"), "MXFP4")
    tensors = _shapes(spec, kinds)
    elements = 3 * 32 * 2880 * 2880
    biases = 32 + 32 * 3 * 2880

    def first_mixture(packed: tuple[str, ...]) -> float:
        held = held_weights(spec, tensors, "bfloat16", frozenset(packed))
        return sum(part.nbytes for part in held if part.tensor.name.startswith("layers.0.mlp."))

    # The router is fp32 where experts stay packed.
    packed = elements * 17 // 32 + 4 * 32 * 2880 + 2 * biases
    assert first_mixture(("MXFP4", "BF16")) == packed
    assert first_mixture(()) == 2 * (elements + 32 * 2880 + biases)


def test_what_is_rounded_of_a_mixture():
    """Experts, but no router and no bias."""
    spec = _gpt_oss()
    tensors = _shapes(spec, {})
    rounded = quantized_tensors(spec, tensors, "int4")
    changed = {name.rpartition("mlp.")[2] for name in tensors if rounded[name] != tensors[name]}
    assert changed == {"experts.gate_up_proj", "experts.down_proj"}
