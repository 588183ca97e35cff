"""config.json of models whose start-ups were measured, less what no size follows from."""

from typing import Any


def _text(
    hidden: int, layers: int, heads: int, kv_heads: int, wide: int, vocab: int, **others: Any
):
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        **others,
    }


def _mrope(*sections: int) -> dict[str, Any]:
    return {"rope_type": "default", "mrope_interleaved": True, "mrope_section": list(sections)}


def _qwen_tower(depth: int, hidden: int, wide: int, out: int, deepstack: list[int]):
    return {
        "depth": depth,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_heads": 16,
        "out_hidden_size": out,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": deepstack,
        "hidden_act": "gelu_pytorch_tanh",
    }


GPT_OSS_20B = _text(
    2880, 24, 64, 8, 2880, 201088,
    architectures=["GptOssForCausalLM"], head_dim=64, num_local_experts=32, num_experts_per_tok=4,
    sliding_window=128, max_position_embeddings=131072, rope_theta=150000, attention_bias=True,
    tie_word_embeddings=False, quantization_config={"quant_method": "mxfp4"},
    rope_scaling={
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
)  # fmt: skip
GPT_OSS_120B = {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128}
QWEN3_VL_30B = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": _text(
        2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, max_position_embeddings=262144, rope_theta=5000000,
        rope_scaling=_mrope(24, 20, 20),
    ),
    "vision_config": _qwen_tower(27, 1152, 4304, 2048, [8, 16, 24]),
}  # fmt: skip
QWEN3_VL_235B = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": _text(
        4096, 94, 64, 4, 12288, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1536, max_position_embeddings=262144, rope_theta=5000000,
        rope_scaling=_mrope(24, 20, 20),
    ),
    "vision_config": _qwen_tower(27, 1152, 4304, 4096, [8, 16, 24]),
}  # fmt: skip
QWEN3_VL_8B = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": _text(
        4096, 36, 32, 8, 12288, 151936, head_dim=128, max_position_embeddings=262144,
        rope_theta=5000000, rope_scaling=_mrope(24, 20, 20),
    ),
    "vision_config": _qwen_tower(27, 1152, 4304, 4096, [8, 16, 24]),
}  # fmt: skip
QWEN3_VL_2B = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": _text(
        2048, 28, 16, 8, 6144, 151936, head_dim=128, max_position_embeddings=262144,
        rope_theta=5000000, rope_scaling=_mrope(24, 20, 20),
    ),
    "vision_config": _qwen_tower(24, 1024, 4096, 2048, [5, 11, 17]),
}  # fmt: skip
QWEN2_VL_2B = {
    **_text(
        1536, 28, 12, 2, 8960, 151936, architectures=["Qwen2VLForConditionalGeneration"],
        max_position_embeddings=32768, rope_theta=1000000.0, tie_word_embeddings=True,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    ),
    "vision_config": {
        "depth": 32, "embed_dim": 1280, "hidden_size": 1536, "mlp_ratio": 4, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN25_VL_7B = {
    **_text(
        3584, 28, 28, 4, 18944, 152064, architectures=["Qwen2_5_VLForConditionalGeneration"],
        max_position_embeddings=128000, rope_theta=1000000.0, tie_word_embeddings=False,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    ),
    "vision_config": {
        "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
        "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
        "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN25_VL_3B = {
    **QWEN25_VL_7B,
    **_text(2048, 36, 16, 2, 11008, 151936),
    "tie_word_embeddings": True,
    "vision_config": {**QWEN25_VL_7B["vision_config"], "out_hidden_size": 2048},
}  # fmt: skip
R1_DISTILL_7B = _text(
    3584, 28, 28, 4, 18944, 152064, architectures=["Qwen2ForCausalLM"],
    max_position_embeddings=131072, rope_theta=10000, tie_word_embeddings=False,
)  # fmt: skip
QWEN36_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": _text(
        5120, 64, 24, 4, 17408, 248320, head_dim=256, max_position_embeddings=262144,
        linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, mamba_ssm_dtype="float32",
        mtp_num_hidden_layers=1, full_attention_interval=4,
        rope_parameters={
            **_mrope(11, 11, 10), "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        },
    ),
    "vision_config": _qwen_tower(27, 1152, 4304, 5120, []),
}  # fmt: skip
QWEN3_8B = _text(
    4096, 36, 32, 8, 12288, 151936, architectures=["Qwen3ForCausalLM"], head_dim=128,
    max_position_embeddings=40960, rope_theta=1000000, tie_word_embeddings=False,
)  # fmt: skip
QWEN3_30B = {
    **QWEN3_VL_30B["text_config"], "architectures": ["Qwen3MoeForCausalLM"],
    "tie_word_embeddings": False, "max_position_embeddings": 40960, "rope_scaling": None,
}  # fmt: skip
LLAMA31_8B = _text(
    4096, 32, 32, 8, 14336, 128256, architectures=["LlamaForCausalLM"],
    max_position_embeddings=131072, rope_theta=500000, tie_word_embeddings=False,
    rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
)  # fmt: skip
