"""Tiny random checkpoints, made by transformers (and llama.cpp's gguf package), and how they load.

Nothing here is computed by Pagoda but what `load` returns.
"""

import os
from pathlib import Path

import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
)

from pagoda.arch.registry import spec_for
from pagoda.arch.stage import stage_of
from pagoda.models.base import CausalLM
from pagoda.models.loader import build_model
from pagoda.planner.attention import choose_attention
from pagoda.runtime.device import make_device
from pagoda.weights.files import open_model
from pagoda.weights.gguf.checkpoint import GgufCheckpoint


def _mistral3(**text) -> Mistral3Config:
    vision = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 60, "patch_size": 4,
    }  # fmt: skip
    tied = text["tie_word_embeddings"]
    text = {"model_type": "mistral", "head_dim": 16, "sliding_window": None, **text}
    return Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


def _gemma3(**text) -> Gemma3Config:
    """With a tower for pictures."""
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    tied = text["tie_word_embeddings"]
    return Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, tie_word_embeddings=tied
    )


def _gemma4(num_positions: int = 256, clipped: bool = False, **text) -> Gemma4Config:
    """With a tower for pictures."""
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "position_embedding_size": num_positions, "standardize": not clipped,
        "use_clipped_linears": clipped,
    }  # fmt: skip
    tied = text["tie_word_embeddings"]
    return Gemma4Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


DEVICE = os.environ.get("PAGODA_TEST_DEVICE", "cpu")
"""Where models are: `make gpu-check` has some of these tests run on `cuda`."""
FAMILIES = {
    "bamba": (BambaConfig, BambaForCausalLM),
    "cohere2": (Cohere2Config, Cohere2ForCausalLM),
    "deepseek_v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    "deepseek_v32": (DeepseekV32Config, DeepseekV32ForCausalLM),
    "ernie4_5": (Ernie4_5Config, Ernie4_5ForCausalLM),
    "ernie4_5_moe": (Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "gemma3_vision": (_gemma3, Gemma3ForConditionalGeneration),
    "gemma3n": (Gemma3nTextConfig, Gemma3nForCausalLM),
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM),
    "gemma4_e": (Gemma4TextConfig, Gemma4ForCausalLM),
    "gemma4_vision": (_gemma4, Gemma4ForConditionalGeneration),
    "glm4": (Glm4Config, Glm4ForCausalLM),
    "glm4_moe": (Glm4MoeConfig, Glm4MoeForCausalLM),
    "glm_moe_dsa": (GlmMoeDsaConfig, GlmMoeDsaForCausalLM),
    "glm4_moe_lite": (Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
    "granite4": (GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM),
    "granite_moe": (GraniteMoeConfig, GraniteMoeForCausalLM),
    "granite_moe_shared": (GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM),
    "hunyuan": (HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM),
    "hunyuan_moe": (HunYuanMoEV1Config, HunYuanMoEV1ForCausalLM),
    "lfm2": (Lfm2Config, Lfm2ForCausalLM),
    "lfm2_moe": (Lfm2MoeConfig, Lfm2MoeForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "llama4": (Llama4TextConfig, Llama4ForCausalLM),
    "minimax_m2": (MiniMaxM2Config, MiniMaxM2ForCausalLM),
    "ministral3": (Ministral3Config, Ministral3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "mistral3": (_mistral3, Mistral3ForConditionalGeneration),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "nemotron_h": (NemotronHConfig, NemotronHForCausalLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "olmo3": (Olmo3Config, Olmo3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
    "seed_oss": (SeedOssConfig, SeedOssForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
    "youtu": (YoutuConfig, YoutuForCausalLM),
}
GEMMA2 = {
    "head_dim": 16, "sliding_window": 13, "query_pre_attn_scalar": 16, "pad_token_id": 0,
    "tie_word_embeddings": True, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0,
}  # fmt: skip
GEMMA3 = {
    "head_dim": 16, "sliding_window": 13, "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip
GEMMA3N = {
    "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 13, "final_logit_softcapping": 4.0,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 211,
    "num_kv_shared_layers": 3, "intermediate_size": [96, 96, 64, 128, 96, 96],
    "activation_sparsity_pattern": [0.8, 0.95, 0.0, 0.0, 0.5, 0.0], "laurel_rank": 64,
    "tie_word_embeddings": True, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip
GEMMA4 = {
    "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "sliding_window": 13, "final_logit_softcapping": 4.0,
    "hidden_size_per_layer_input": 0, "tie_word_embeddings": True, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
GEMMA4_E = {
    **GEMMA4, "num_hidden_layers": 6, "attention_k_eq_v": False, "num_global_key_value_heads": None,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 211,
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip
GEMMA4_MOE = {
    **GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3,
    "moe_intermediate_size": 32,
}  # fmt: skip
QWEN3_MOE = {
    "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}  # fmt: skip
GPT_OSS = {
    "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64,
    "sliding_window": 13, "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "truncate": False,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
QWEN3_5 = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
}  # fmt: skip
QWEN3_5_MOE = {
    **QWEN3_5, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
LFM2 = {
    "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
}  # fmt: skip
LFM2_MOE = {
    "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
    "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA4 = {
    "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 4, "intermediate_size": 32,
    "intermediate_size_mlp": 96, "attention_chunk_size": 37, "floor_scale": 29,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
MINISTRAL3 = {
    "head_dim": 16, "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": 0.1,
    },
}  # fmt: skip
COHERE2 = {"num_hidden_layers": 4, "sliding_window": 13, "logit_scale": 0.5, "pad_token_id": 0}
ERNIE4_5_MOE = {
    "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24, "pad_token_id": 0,
}  # fmt: skip
GLM4_MOE = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 16,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "attention_bias": True,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 24,
}  # fmt: skip
DEEPSEEK_V3 = {
    **LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
# Fewer heads would leave many keys with a score of zero, and who breaks such ties how is open.
INDEXED = {"index_topk": 11, "index_head_dim": 32, "index_n_heads": 16}
DEEPSEEK_V32 = {**DEEPSEEK_V3, **INDEXED}
GLM_MOE_DSA = {
    **LATENT, **INDEXED, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"],
}  # fmt: skip
DEEPSEEK_V2 = {
    **{name: size for name, size in DEEPSEEK_V3.items() if name != "num_nextn_predict_layers"},
    "n_shared_experts": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0,
}  # fmt: skip
V2_LITE = {
    **DEEPSEEK_V2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    "rope_parameters": {
        **DEEPSEEK_V3["rope_parameters"], "mscale": 0.707, "mscale_all_dim": 0.707,
    },
}  # fmt: skip
GLM4_MOE_LITE = {
    **LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-5,
}  # fmt: skip
GRANITE_MOE = {
    "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}  # fmt: skip
HUNYUAN = {
    "head_dim": 16, "eos_token_id": 2, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 500.0, "alpha": 20.0, "factor": 1.0,
    },
}  # fmt: skip
HUNYUAN_MOE = {**HUNYUAN, "num_experts": 6, "moe_topk": 2, "intermediate_size": 32}
GRANITE4_HYBRID = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2,
    "logits_scaling": 1.5, "num_hidden_layers": 4, "intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 24,
}  # fmt: skip
BAMBA = {
    "num_hidden_layers": 4, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_d_state": 24,
}  # fmt: skip
NEMOTRON_H = {
    "layers_block_type": [
        "linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention",
    ],
    "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 24, "n_groups": 2,
}  # fmt: skip
NEMOTRON_H_MOE = {
    **NEMOTRON_H, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 2.5,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "moe"],
}  # fmt: skip
NEMOTRON_H_MIXED = {
    **NEMOTRON_H_MOE,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
}
MINIMAX_M2 = {
    "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
OLMO3 = {
    "num_hidden_layers": 4, "sliding_window": 13,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}  # fmt: skip
# Norms that add 1 to their weights.
_DIFFER_FROM_1 = ("Gemma2RMSNorm", "Gemma3RMSNorm")
SIZES = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def make(family: str, seed: int = 0, **changes) -> PreTrainedModel:
    """A model with weights large enough that attention is far from uniform, in fp32."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **changes})).eval()
    randomize(model)
    return model


@torch.no_grad()
def randomize(model: PreTrainedModel) -> None:
    differ = [x for x in model.modules() if type(x).__name__ in _DIFFER_FROM_1]
    centered = {id(norm.weight) for norm in differ}
    for name, weight in model.named_parameters():
        # Norms and biases too: fresh ones are constants and would hide a mix-up. States that forget
        # within a few tokens would hide one, too.
        base = 1.0 if "norm" in name else -3.0 if "A_log" in name else 0.0
        base = 0.0 if id(weight) in centered else base
        weight.copy_(base + 0.15 * torch.randn(weight.shape))
    for name, number in model.named_buffers():
        if name.endswith(("input_min", "input_max", "output_min", "output_max")):
            bound = 0.5 + torch.rand(number.shape)
            number.copy_(-bound if name.endswith("min") else bound)
        if name.endswith(("layer_scalar", "std_bias", "std_scale")):
            number.copy_(1.0 + 0.15 * torch.randn(number.shape))
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            number.copy_(0.2 * torch.randn(number.shape))


def load(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = DEVICE,
    *,
    drafts: bool = False,
    cuts: tuple[int, ...] = (),
    stage: int = 0,
    **options,
) -> CausalLM:
    """A folder of config.json and safetensors, or a GGUF file, as Pagoda reads it; with its draft
    head if it `drafts`, or one of the stages that it is cut into."""
    if folder.suffix == ".gguf":
        checkpoint = GgufCheckpoint(folder)
        spec = spec_for(None, checkpoint.metadata, checkpoint.tensors)
    else:
        files = open_model(folder)
        checkpoint = files.checkpoint
        spec = spec_for(files.config, {}, checkpoint.tensors)
    spec = stage_of(spec.drafting() if drafts else spec, cuts, stage)
    if device == "cuda" and "attention" not in options:
        name, facts = str(dtype).removeprefix("torch."), make_device("cuda").facts()
        options["attention"] = choose_attention(spec, "auto", name, facts, [])
    return build_model(spec, checkpoint, dtype=dtype, device=device, **options)


def random_ids(count: int, vocab_size: int = 211, seed: int = 1) -> list[int]:
    return torch.randint(vocab_size, (count,), generator=_generator(seed)).tolist()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    return model(torch.tensor([ids])).logits[0]
