"""A Qwen3.5 model of transformers, dense or not, as llama.cpp's converter would write it
(conversion/qwen.py), or a Qwen3-Next as it did in 2025, which its src/models/qwen3next.cpp still
reads.

Written from those facts with llama.cpp's own gguf package; nothing of Pagoda takes part.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from tests.models import tiny_gguf
from tests.models.tiny_gguf import Storage

_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
    "mtp.embed_tokens.weight": "nextn.embed_tokens.weight",
    "mtp.head.weight": "nextn.shared_head_head.weight",
}
_ARCHS = {"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next"}
_PLAIN = ("conv1d", "mlp.gate.", "shared_expert_gate")


def write(
    path: Path,
    model: PreTrainedModel,
    storage: Storage,
    draft_head: dict[str, torch.Tensor] | None = None,
) -> PreTrainedModel:
    """Write `model` to `path`, matrices stored so, and give it the weights that the file holds: of
    a model that sees the language model. Its head's tensors, of which `mtp.` names may be missing,
    get theirs, too.
    """
    config = model.config.get_text_config()
    writer = gguf.GGUFWriter(path, _ARCHS[config.model_type])
    _write_metadata(writer, config, int(draft_head is not None))
    state = {
        name.replace("model.language_model.", "model."): weight
        for name, weight in model.state_dict().items()
        if not name.startswith("model.visual.")
    }
    block = f"model.layers.{config.num_hidden_layers}."
    for name, weight in (draft_head or {}).items():
        state[name.replace("mtp.layers.0.", block)] = weight
    for name, weight in tiny_gguf.tensors(state, config.model_type):
        values = weight.numpy().squeeze(1) if "conv1d" in name else weight.numpy()
        values = values.squeeze(0) if "shared_expert_gate" in name else values
        order = _tiled_order(name, values.shape, config)
        axis = 1 if "out_proj" in name else 0
        if order is not None:
            values = np.take(values, order, axis)
        values = _there(name)(values)
        plain = values.ndim == 1 or any(part in name for part in _PLAIN)
        kind = Storage.F32 if plain else storage
        raw = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(_stored_name(name, config), raw, raw_dtype=kind)
        if kind != Storage.F32:
            seen = gguf.dequantize(raw, kind).reshape(values.shape)
            if order is not None:
                seen = np.take(seen, np.argsort(order), axis)
            weight.copy_(torch.from_numpy(seen.copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_metadata(writer: gguf.GGUFWriter, config, draft_layers: int) -> None:
    writer.add_block_count(config.num_hidden_layers + draft_layers)
    if draft_layers:
        writer.add_nextn_predict_layers(draft_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if config.model_type != "qwen3_5_moe_text":
        writer.add_feed_forward_length(config.intermediate_size)
    if config.model_type != "qwen3_5_text":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope.get("mrope_section", [11, 11, 10]), 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)


def _there(name: str) -> Callable[[np.ndarray], np.ndarray]:
    if name.endswith("A_log"):
        return lambda values: -np.exp(values)
    if "norm" in name and "linear_attn" not in name:
        return lambda values: values + 1
    return lambda values: values


def _tiled_order(name: str, shape: tuple[int, ...], config) -> np.ndarray | None:
    """Where rows (of out_proj: columns) go: value heads that share a key head lie apart by the
    number of key heads. q and k stay."""
    if "linear_attn." not in name or name.endswith("linear_attn.norm.weight"):
        return None
    if config.model_type == "qwen3_next":
        return None
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    total = shape[1] if "out_proj" in name else shape[0]
    fixed = 2 * keys * config.linear_key_head_dim if "qkv" in name or "conv1d" in name else 0
    heads = np.arange(fixed, total).reshape(keys, values // keys, -1)
    return np.concatenate((np.arange(fixed), heads.swapaxes(0, 1).ravel()))


def _stored_name(name: str, config) -> str:
    if name.startswith("mtp."):
        return f"blk.{config.num_hidden_layers}.{_TENSORS[name]}"
    if not name.startswith("model.layers."):
        return _TENSORS[name]
    layer, _, stem = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_TENSORS[stem]}"
