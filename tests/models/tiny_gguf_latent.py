"""What llama.cpp's converter (conversion/base.py and deepseek.py) writes of multi-head latent
attention, now and before it split the matrix that makes keys and values."""

from collections.abc import Iterator

import gguf
import torch

TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "youtu")
ARCHS = {
    **dict.fromkeys(TYPES, "deepseek2"), "deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa",
}  # fmt: skip


def parts(name: str, weight: torch.Tensor, config) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of a matrix by the names that the converter gives them before it renames all."""
    if not name.endswith("kv_b_proj.weight"):
        yield name, weight
        return
    nope, value = config.qk_nope_head_dim, config.v_head_dim
    keys, values = weight.view(config.num_attention_heads, nope + value, -1).split((nope, value), 1)
    yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), values


def write_metadata(writer: gguf.GGUFWriter, config, *, joined: bool) -> None:
    """What other models do not have; `joined` is of the older files."""
    rotated = config.qk_rope_head_dim
    writer.add_head_count(config.num_attention_heads)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    own = (config.qk_nope_head_dim + rotated, config.v_head_dim)
    cached = (config.kv_lora_rank + rotated, config.kv_lora_rank)
    key, value = own if joined else cached
    writer.add_head_count_kv(config.num_attention_heads if joined else 1)
    writer.add_key_length(key)
    writer.add_value_length(value)
    if not joined:
        writer.add_key_length_mla(own[0])
        writer.add_value_length_mla(own[1])
    writer.add_rope_dimension_count(rotated)
    rope = config.rope_parameters
    if rope.get("mscale_all_dim") is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if getattr(config, "index_topk", None):
        writer.add_indexer_head_count(config.index_n_heads)
        writer.add_indexer_key_length(config.index_head_dim)
        writer.add_indexer_top_k(config.index_topk)
    if config.model_type == "glm_moe_dsa":
        own = [kind == "full" for kind in config.indexer_types]
        writer.add_array(f"{writer.arch}.attention.indexer.types", own)
    _write_experts(writer, config)


def _write_experts(writer: gguf.GGUFWriter, config) -> None:
    if config.model_type == "youtu":
        writer.add_leading_dense_block_count(config.num_hidden_layers)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(0)
        return
    dense = getattr(config, "mlp_layer_types", ["dense"]).count("dense")
    writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", dense))
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.norm_topk_prob:
        writer.add_expert_weights_norm(True)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    kind = "SOFTMAX" if config.model_type == "deepseek_v2" else "SIGMOID"
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType[kind])
