"""config.json of models with latent attention, less what no size follows from."""

from typing import Any


def _rope(factor: float, mscale: float) -> dict[str, Any]:
    return {
        "type": "yarn", "factor": factor, "mscale": mscale, "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip


_LATENT = {
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
_FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}  # fmt: skip
V2_LITE = {
    **_LATENT, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "q_lora_rank": None, "max_position_embeddings": 163840, "rope_theta": 10000,
    "rope_scaling": _rope(40, 0.707), "topk_method": "greedy", "scoring_func": "softmax",
    "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
}  # fmt: skip
V3 = {
    **_LATENT, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "max_position_embeddings": 163840, "rope_theta": 10000,
    "rope_scaling": _rope(40, 1.0), "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1, "quantization_config": _FP8,
}  # fmt: skip
KIMI_K2 = {
    **V3, "model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
    "max_position_embeddings": 131072, "rope_theta": 50000.0, "n_group": 1, "topk_group": 1,
    "rope_scaling": {**_rope(32, 1.0), "beta_fast": 1.0}, "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
GLM_FLASH = {
    **_LATENT, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
    "num_key_value_heads": 20, "n_routed_experts": 64, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "first_k_dense_replace": 1, "q_lora_rank": 768,
    "qk_nope_head_dim": 192, "v_head_dim": 256, "max_position_embeddings": 202752,
    "rope_theta": 1000000, "rms_norm_eps": 1e-5, "topk_method": "noaux_tc", "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
