"""Logits equal to transformers' on tiny random checkpoints that transformers saved."""

import pytest
import torch

from tests.models import tiny
from tests.models.driver import Driver

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2, 3.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0],
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.4,
    "logits_scaling": 1.6,
}  # fmt: skip
# Granite 4's class computes no Mamba here, and wants its sizes to fit all the same.
GRANITE4 = {
    **MULTIPLIERS, "layer_types": ["attention"] * 3, "num_local_experts": 0,
    "shared_intermediate_size": 96, "position_embedding_type": "rope", "mamba_n_heads": 4,
    "mamba_d_head": 32,
}  # fmt: skip
# Windows and global layers of other shapes than the published ones.
GEMMA4_OTHERS = {
    **tiny.GEMMA4, "num_hidden_layers": 3, "attention_k_eq_v": False, "attention_bias": True,
    "global_head_dim": 24, "layer_types": ["full_attention", *["sliding_attention"] * 2],
    "final_logit_softcapping": None, "hidden_size": 80,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip
# As the 27B of Gemma 3, whose queries have a scale of their own, and as models made of it.
GEMMA3_OTHERS = {
    **tiny.GEMMA3, "head_dim": 24, "query_pre_attn_scalar": 16, "hidden_size": 80,
    "attention_bias": True, "final_logit_softcapping": 4.0, "tie_word_embeddings": False,
    "layer_types": ["full_attention", *["sliding_attention"] * 2],
}  # fmt: skip
GEMMA2_OTHERS = {
    **tiny.GEMMA2, "head_dim": 24, "query_pre_attn_scalar": 20, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "attention_bias": True, "hidden_size": 80,
    "layer_types": ["full_attention", *["sliding_attention"] * 2],
}  # fmt: skip
CASES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 24}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama all kv heads": ("llama", {"num_key_value_heads": 4}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn options": (
        "llama",
        {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.3}},
    ),
    "llama yarn mscale": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 21}),
    "mixtral": ("mixtral", tiny.MIXTRAL),
    "mixtral window": (
        "mixtral",
        {**tiny.MIXTRAL, "sliding_window": 21, "num_experts_per_tok": 3, "head_dim": 24},
    ),
    "mistral 3": ("mistral3", {}),
    "mistral 3 tied": ("mistral3", {"tie_word_embeddings": True}),
    "ministral 3": ("ministral3", tiny.MINISTRAL3),
    "ministral 3 beside a tower": (
        "mistral3", {"model_type": "ministral3", **tiny.MINISTRAL3, "sliding_window": 40},
    ),
    "llama 4": ("llama4", tiny.LLAMA4),
    "llama 4, every second layer dense": (
        "llama4",
        {
            **tiny.LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False,
            "rope_parameters": LLAMA3,
        },
    ),
    "llama 4 options": (
        "llama4",
        {
            **tiny.LLAMA4, "no_rope_layers": [0, 1, 1, 0], "num_experts_per_tok": 2,
            "moe_layers": [0, 3], "attention_bias": True, "tie_word_embeddings": True,
            "attn_temperature_tuning": False, "attention_chunk_size": 16,
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "smollm3 options": (
        "smollm3",
        {
            "no_rope_layers": [0, 1, 0], "attention_bias": True, "mlp_bias": True,
            "use_sliding_window": True, "sliding_window": 19, "tie_word_embeddings": True,
        },
    ),
    "phi3": ("phi3", {}),
    "phi3 window, part of a head": (
        "phi3",
        {
            "sliding_window": 13, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "phi3 longrope": (
        "phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "granite": ("granite", MULTIPLIERS),
    "granite tied, biases": (
        "granite",
        {**MULTIPLIERS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "granite moe": ("granite_moe", tiny.GRANITE_MOE),
    "granite moe tied, biases": (
        "granite_moe",
        {**tiny.GRANITE_MOE, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "granite moe with a shared expert": (
        "granite_moe_shared", {**tiny.GRANITE_MOE, "shared_intermediate_size": 48},
    ),
    "granite 4": ("granite4", GRANITE4),
    "bamba": ("bamba", tiny.BAMBA),
    "granite 4 unrotated": ("granite4", {**GRANITE4, "position_embedding_type": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": (
        "qwen2", {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3 tied, biases": (
        "qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3 windows": (
        "qwen3",
        {
            "head_dim": 16, "use_sliding_window": True, "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3 moe": ("qwen3_moe", tiny.QWEN3_MOE),
    "qwen3 moe, some layers dense": (
        "qwen3_moe", {**tiny.QWEN3_MOE, "mlp_only_layers": [1], "norm_topk_prob": False},
    ),
    "qwen3 moe, every second layer": (
        "qwen3_moe",
        {**tiny.QWEN3_MOE, "decoder_sparse_step": 2, "num_experts_per_tok": 8,
         "moe_intermediate_size": 28},
    ),
    "qwen3.5 moe": ("qwen3_5_moe", tiny.QWEN3_5_MOE),
    "qwen3.5 moe biases": (
        "qwen3_5_moe",
        {**tiny.QWEN3_5_MOE, "attention_bias": True, "shared_expert_intermediate_size": 32},
    ),
    "qwen3-next": ("qwen3_next", tiny.QWEN3_5_MOE),
    "qwen3-next, some layers dense": (
        "qwen3_next",
        {**tiny.QWEN3_5_MOE, "mlp_only_layers": [1], "norm_topk_prob": False,
         "linear_num_key_heads": 1, "linear_num_value_heads": 3},
    ),
    "gemma 2": ("gemma2", tiny.GEMMA2),
    "gemma 2 without caps": ("gemma2", GEMMA2_OTHERS),
    "gemma 3": ("gemma3", tiny.GEMMA3),
    "gemma 3 with a cap and biases": ("gemma3", GEMMA3_OTHERS),
    "gemma 3 beside a tower": ("gemma3_vision", tiny.GEMMA3),
    "gemma 3n": ("gemma3n", tiny.GEMMA3N),
    "gemma 3n, other sizes": (
        "gemma3n",
        {
            **tiny.GEMMA3N, "altup_num_inputs": 3, "laurel_rank": 8, "altup_correct_scale": False,
            "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 190, "hidden_size": 80,
            "attention_bias": True, "head_dim": 24, "final_logit_softcapping": 9.0,
            "activation_sparsity_pattern": [0.0] * 6, "intermediate_size": 96,
        },
    ),
    "gemma 4": ("gemma4", tiny.GEMMA4),
    "gemma 4, values of their own": ("gemma4", GEMMA4_OTHERS),
    "gemma 4 moe": ("gemma4", tiny.GEMMA4_MOE),
    "gemma 4 e": ("gemma4_e", tiny.GEMMA4_E),
    "gemma 4 e, all lenders": (
        "gemma4_e", {**tiny.GEMMA4_E, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 300},
    ),
    "gemma 4 e beside a tower": ("gemma4_vision", tiny.GEMMA4_E),
    "gemma 4 beside a tower": ("gemma4_vision", tiny.GEMMA4_MOE),
    "olmo 2": ("olmo2", {}),
    "olmo 2 biases, tied": (
        "olmo2",
        {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "olmo 3": ("olmo3", tiny.OLMO3),
    "olmo 3 kinds of layers": (
        "olmo3",
        {
            **tiny.OLMO3, "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "minimax m2": ("minimax_m2", tiny.MINIMAX_M2),
    "hunyuan": ("hunyuan", {**tiny.HUNYUAN, "attention_bias": True}),
    "hunyuan moe": ("hunyuan_moe", tiny.HUNYUAN_MOE),
    "minimax m2, heads of another size": (
        "minimax_m2", {**tiny.MINIMAX_M2, "head_dim": 24, "num_key_value_heads": 4},
    ),
    "ernie 4.5": ("ernie4_5", {"head_dim": 24, "pad_token_id": 0}),
    "ernie 4.5 tied, biases": (
        "ernie4_5",
        {"head_dim": 16, "pad_token_id": 0, "use_bias": True, "tie_word_embeddings": True},
    ),
    "ernie 4.5 moe": ("ernie4_5_moe", tiny.ERNIE4_5_MOE),
    "ernie 4.5 moe, some layers dense": (
        "ernie4_5_moe",
        {
            **tiny.ERNIE4_5_MOE, "num_hidden_layers": 6, "moe_layer_start_index": 1,
            "moe_layer_end_index": 4, "moe_layer_interval": 2, "moe_num_shared_experts": 0,
        },
    ),
    "glm-4": ("glm4", {"head_dim": 24}),
    "glm-4 tied, no biases": (
        "glm4", {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True},
    ),
    "glm-4.5": ("glm4_moe", tiny.GLM4_MOE),
    "glm-4.5 groups, normed heads": (
        "glm4_moe",
        {
            **tiny.GLM4_MOE, "n_routed_experts": 12, "n_group": 4, "topk_group": 2,
            "use_qk_norm": True, "attention_bias": False, "norm_topk_prob": False,
            "n_shared_experts": 2, "first_k_dense_replace": 2,
        },
    ),
    "deepseek v2": ("deepseek_v2", tiny.DEEPSEEK_V2),
    "deepseek v2 lite": ("deepseek_v2", tiny.V2_LITE),
    "deepseek v3": ("deepseek_v3", tiny.DEEPSEEK_V3),
    "deepseek v3 without a rank of queries, as moonlight": (
        "deepseek_v3",
        {
            **tiny.DEEPSEEK_V3, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
            "n_shared_experts": 2, "norm_topk_prob": False, "first_k_dense_replace": 2,
            "rope_parameters": None, "tie_word_embeddings": True,
        },
    ),
    "glm-4.7-flash": ("glm4_moe_lite", tiny.GLM4_MOE_LITE),
    "deepseek v3.2": ("deepseek_v32", tiny.DEEPSEEK_V32),
    "glm-5.2": ("glm_moe_dsa", tiny.GLM_MOE_DSA),
    "youtu": ("youtu", {**tiny.LATENT, "tie_word_embeddings": True}),
    "command r7b": ("cohere2", {**tiny.COHERE2, "tie_word_embeddings": True}),
    "command r7b options": (
        "cohere2",
        {
            **tiny.COHERE2, "attention_bias": True, "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "seed-oss": ("seed_oss", {"head_dim": 24}),
    "seed-oss other biases": (
        "seed_oss",
        {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "gpt-oss": ("gpt_oss", tiny.GPT_OSS),
    "gpt-oss all windows": (
        "gpt_oss", {**tiny.GPT_OSS, "layer_types": ["sliding_attention"] * 3, "head_dim": 24},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_logits_equal(case: str, tmp_path):
    family, changes = CASES[case]
    reference = tiny.make(family, **changes)
    reference.save_pretrained(tmp_path)
    driver = Driver(tiny.load(tmp_path))
    ids = tiny.random_ids(150)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3  # else an attention fault could hide below the bound
    torch.testing.assert_close(driver.run(ids, chunk=64), expected, rtol=0, atol=1e-4)


def test_sharded_safetensors(tmp_path):
    reference = tiny.make("llama")
    reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    ids = tiny.random_ids(40)
    logits = Driver(tiny.load(tmp_path)).run(ids, chunk=40)
    torch.testing.assert_close(logits, tiny.reference_logits(reference, ids), rtol=0, atol=1e-4)


def test_dynamic_scaling_equals_transformers_token_by_token(tmp_path):
    """Past the trained length transformers rescales with each generated token."""
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    reference = tiny.make("llama", rope_parameters=scaling, max_position_embeddings=32)
    reference.save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    assert model.spec.max_position == 64
    ids = tiny.random_ids(48)
    cache, expected = None, []
    with torch.inference_mode():
        for token in ids:
            out = reference(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            expected.append(out.logits[0, -1])
    logits = Driver(model).run(ids, chunk=16)
    torch.testing.assert_close(logits, torch.stack(expected), rtol=0, atol=1e-4)


def test_longrope_of_a_short_context_takes_the_short_factors(tmp_path):
    reference = tiny.make("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    reference.save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    model.reserve(64)
    ids = tiny.random_ids(64)
    logits = Driver(model).run(ids, chunk=20)
    torch.testing.assert_close(logits, tiny.reference_logits(reference, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {"head_dim": 16}),
        ("granite", MULTIPLIERS),
        ("gemma3", tiny.GEMMA3),
        ("gemma3n", tiny.GEMMA3N),
        ("gemma4", tiny.GEMMA4),
        ("gemma4_e", tiny.GEMMA4_E),
        ("olmo3", tiny.OLMO3),
        ("cohere2", tiny.COHERE2),
    ],
)
def test_half_precision_stays_close(family, changes, dtype, tmp_path):
    """The distance to fp32 is no more than transformers' own in the same dtype."""
    reference = tiny.make(family, **changes)
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(60)
    exact = tiny.reference_logits(reference, ids)
    theirs = (tiny.reference_logits(reference.to(dtype), ids).float() - exact).abs().mean()
    ours = (Driver(tiny.load(tmp_path, dtype)).run(ids, chunk=60) - exact).abs().mean()
    assert ours < 1.2 * theirs
