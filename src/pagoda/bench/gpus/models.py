"""The models of `bench gpu`: config.json of their language models, as published, less what no size
follows from. Their towers see no picture here and are left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class GpuModel:
    name: str
    config: dict[str, Any]

    @property
    def plain_config(self) -> dict[str, Any]:
        """The config of the same model in a type of 16 bits, without the name of its class:
        transformers makes no random weights in fewer bits."""
        left_out = ("architectures", "quantization_config")
        return {name: value for name, value in self.config.items() if name not in left_out}


def _config(
    architecture: str, model_type: str, sizes: tuple[int, int, int, int, int, int], **others: Any
) -> dict[str, Any]:
    """Sizes: hidden, layers, heads, KV heads, feed-forward part, vocabulary."""
    hidden, layers, heads, kv_heads, wide, vocab = sizes
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": wide, "vocab_size": vocab,
        "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "eos_token_id": 1, **others,
    }  # fmt: skip


_GEMMA4: dict[str, Any] = {
    "attention_k_eq_v": True, "final_logit_softcapping": 30.0, "global_head_dim": 512,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144, "num_kv_shared_layers": 0, "sliding_window": 1024,
    "tie_word_embeddings": True, "use_bidirectional_attention": None,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "head_dim": 128, "max_position_embeddings": 262144, "rope_theta": 5000000,
}  # fmt: skip
_FP8: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True},
        },
    },
}  # fmt: skip
_INT4: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
}  # fmt: skip

_PUBLISHED = (
    GpuModel(
        "gpt-oss-20b",
        _config(
            "GptOssForCausalLM", "gpt_oss", (2880, 24, 64, 8, 2880, 201088), head_dim=64,
            num_local_experts=32, num_experts_per_tok=4, sliding_window=128, attention_bias=True,
            max_position_embeddings=131072, rope_theta=150000, rms_norm_eps=1e-5,
            rope_scaling={
                "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            },
            quantization_config={"quant_method": "mxfp4"},
        ),
    ),
    GpuModel(
        "Gemma-4-26B-A4B",
        _config(
            "Gemma4ForCausalLM", "gemma4_text", (2816, 30, 16, 8, 2112, 262144), **_GEMMA4,
            enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=704,
            num_global_key_value_heads=2,
            layer_types=[*["sliding_attention"] * 5, "full_attention"] * 5,
        ),
    ),
    GpuModel(
        "Gemma-4-31B",
        _config(
            "Gemma4ForCausalLM", "gemma4_text", (5376, 60, 32, 16, 21504, 262144), **_GEMMA4,
            enable_moe_block=False, num_global_key_value_heads=4,
            layer_types=[*["sliding_attention"] * 5, "full_attention"] * 10,
        ),
    ),
    GpuModel(
        "Qwen3-VL-8B",
        _config("Qwen3ForCausalLM", "qwen3", (4096, 36, 32, 8, 12288, 151936), **_QWEN3),
    ),
    GpuModel(
        "Qwen3-VL-30B-A3B",
        _config(
            "Qwen3MoeForCausalLM", "qwen3_moe", (2048, 48, 32, 4, 6144, 151936), **_QWEN3,
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
        ),
    ),
    GpuModel(
        "DeepSeek-R1-Distill-Qwen-7B",
        _config(
            "Qwen2ForCausalLM", "qwen2", (3584, 28, 28, 4, 18944, 152064), rope_theta=10000,
            max_position_embeddings=131072,
        ),
    ),
    GpuModel(
        "Qwen3.6-27B",
        _config(
            "Qwen3_5ForCausalLM", "qwen3_5_text", (5120, 64, 24, 4, 17408, 248320), head_dim=256,
            max_position_embeddings=262144, linear_num_key_heads=16, linear_num_value_heads=48,
            linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
            full_attention_interval=4,
            rope_parameters={
                "rope_type": "default", "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            },
        ),
    ),
)  # fmt: skip


def _quantized(name: str, short: str, config: Mapping[str, Any]) -> GpuModel:
    (model,) = (one for one in _PUBLISHED if one.name == name)
    quantized = {**model.config, "quantization_config": config}
    return replace(model, name=f"{name}-{short}", config=quantized)


MODELS = (
    *_PUBLISHED,
    _quantized("Gemma-4-26B-A4B", "FP8", _FP8),
    _quantized("Qwen3.6-27B", "INT4", _INT4),
)
