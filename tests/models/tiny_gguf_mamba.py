"""What llama.cpp's converter makes of Mamba-2's layers and of the models that have them
(conversion/{mamba,granite,nemotron}.py)."""

import gguf
import numpy as np

TENSORS = {
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
    "model.embeddings": "token_embd",
    "model.norm_f": "output_norm",
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction": "exp_probs_b",
    "mixer.experts.up_proj": "ffn_up_exps",
    "mixer.experts.down_proj": "ffn_down_exps",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
}
_NUMBERS = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
TYPES = ("granitemoehybrid", "nemotron_h")
DENSE = {
    "shared_mlp.gate": "ffn_gate",
    "shared_mlp.up": "ffn_up",
    "shared_mlp.output_linear": "ffn_down",
}
"""Names of a Granite 4 without experts."""


def number_name(name: str) -> str | None:
    """The stored name of a layer's numbers of each head, `model.layers.0.mamba.D`."""
    parts = name.split(".")
    return f"blk.{parts[2]}.{_NUMBERS[parts[-1]]}" if parts[-1] in _NUMBERS else None


def there(name: str, values: np.ndarray, config) -> np.ndarray:
    """A tensor's values as the file has them."""
    if name.endswith("A_log"):
        return -np.exp(values).reshape(-1, 1)
    if name.endswith((".mamba.D", ".mixer.D")):
        return values.reshape(-1, 1)
    if name.endswith("conv1d.weight"):
        return values.squeeze(1)
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        return values.reshape(_groups(config), -1)
    return values


def write_metadata(writer: gguf.GGUFWriter, config) -> None:
    """All but what other models have too."""
    attends = [kind in ("full_attention", "attention") for kind in config.layer_types]
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads if found else 0 for found in attends])
    writer.add_ssm_group_count(_groups(config))
    if config.model_type == "nemotron_h":
        _write_nemotron(writer, config)
        return
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_rope_scaling_finetuned(all(attends))
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def _write_nemotron(writer: gguf.GGUFWriter, config) -> None:
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    sparse = "moe" in config.layer_types
    width = config.moe_intermediate_size if sparse else config.intermediate_size
    wide = [kind in ("mlp", "moe") for kind in config.layer_types]
    writer.add_feed_forward_length([width if found else 0 for found in wide])
    if sparse:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(width)
        shared = config.moe_shared_expert_intermediate_size
        writer.add_expert_shared_feed_forward_length(shared)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)


def write_head_dim(writer: gguf.GGUFWriter, config) -> None:
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def _groups(config) -> int:
    return config.n_groups if config.model_type == "nemotron_h" else config.mamba_n_groups


def is_dense(config) -> bool:
    """Whether it is a Granite 4 whose shared expert is all that it has."""
    return config.model_type == "granitemoehybrid" and not config.num_local_experts
