"""A transformers model as llama.cpp's converter would write it (conversion/{base,granite,llama,
mistral3,phi,qwen}.py).

Written from those facts with llama.cpp's own gguf package; nothing of Pagoda takes part.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from tests.models import tiny_gguf_latent as latent
from tests.models import tiny_gguf_mamba as mamba

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "mlp.gate_proj": "ffn_gate",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.e_score_correction": "exp_probs_b",
    "mlp.gate.moe_statics.e_score_correction": "exp_probs_b",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.experts.gate_proj": "ffn_gate_exps",
    "block_sparse_moe.experts.up_proj": "ffn_up_exps",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps",
    "shared_mlp.gate": "ffn_gate_shexp",
    "shared_mlp.up": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "router.proj": "ffn_gate_inp",
    "layer_scalar": "layer_output_scale",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "model.altup_projections": "altup_proj",
    "model.altup_unembed_projections": "altup_unembd_proj",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "mlp.gate.wg": "ffn_gate_inp",
    "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "mlp.w1": "ffn_gate",
    "mlp.w3": "ffn_up",
    "mlp.w2": "ffn_down",
    "mlp.expert_bias": "exp_probs_b",
    **mamba.TENSORS,
}
_PERMUTED = ("llama", "smollm3", "granite", "ministral3", "mixtral",
             "granitemoe", "granitemoeshared", *mamba.TYPES)  # fmt: skip
_MOE = ("qwen3_moe", "gpt_oss", "llama4_text", "mixtral", "glm4_moe", "ernie4_5_moe",
        "granitemoe", "granitemoeshared", "minimax_m2", "lfm2_moe", "hunyuan_v1_moe",
        *set(latent.TYPES) - {"youtu"})  # fmt: skip
# Where an architecture's names differ.
_OWN = dict.fromkeys(
    ("gpt-oss", "gemma2", "gemma3", "gemma3n", "gemma4", "olmo2", "seed_oss", "glm4moe"),
    {"post_attention_layernorm": "post_attention_norm"},
)
# Norms that add 1 to their weights, which the converter does beforehand.
_DIFFER_FROM_1 = ("gemma2", "gemma3_text")
_ARCHS = {
    "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "ministral3": "mistral3",
    "llama4_text": "llama4", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "granitemoehybrid": "granitehybrid",
    "mixtral": "llama", "ernie4_5_moe": "ernie4_5-moe", "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe",
    "minimax_m2": "minimax-m2", "lfm2_moe": "lfm2moe", "olmo3": "olmo2", "glm4_moe": "glm4moe",
    **latent.ARCHS,
}  # fmt: skip
_PLAIN = ("ffn_gate_inp", "altup", "laurel", "shortconv.conv", "ssm_conv1d", "_norm.", "ssm_a",
          "ssm_d")  # fmt: skip
Storage = gguf.GGMLQuantizationType


def write(
    path: Path,
    model: PreTrainedModel,
    storage_of: Callable[[str], Storage],
    *,
    stacked: bool = True,
    joined: bool = False,
    quantize: Callable[[np.ndarray, Storage], np.ndarray] = gguf.quantize,
) -> None:
    """Write `model` to `path` and give it the weights that the file then holds.

    `storage_of` is asked for each matrix but routers; those and vectors are F32 as in every GGUF.
    If not `stacked`, each expert's matrices are tensors of their own; if `joined`, one matrix
    makes the keys and values of latent attention. Both are of older files. `quantize` is for types
    that the package cannot write.
    """
    config = model.config
    arch = _ARCHS.get(config.model_type, config.model_type)
    arch += "_moe" * (config.model_type == "nemotron_h" and "moe" in config.layer_types)
    writer = gguf.GGUFWriter(path, arch)
    _write_metadata(writer, model.config, joined=joined)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, weight in _all_tensors(state, model.config, joined=joined):
        stored_name = _stored_name(name, model.config, arch)
        values = mamba.there(name, weight.numpy(), config)
        heads = _permuted_heads(name, model.config)
        if heads:
            values = _permute(values, heads)
        one = config.model_type in _DIFFER_FROM_1 and name.endswith("norm.weight")
        values = values + 1 if one else values
        plain = values.ndim == 1 or name.endswith("bias") or any(x in stored_name for x in _PLAIN)
        storage = Storage.F32 if plain else storage_of(stored_name)
        raw = quantize(np.ascontiguousarray(values), storage)
        if stacked or "_exps." not in stored_name:
            writer.add_tensor(stored_name, raw, raw_dtype=storage)
        else:
            for expert, matrix in enumerate(raw):
                own_name = stored_name.replace("_exps", f".{expert}")
                writer.add_tensor(own_name, matrix, raw_dtype=storage)
        if not plain:
            seen = gguf.dequantize(raw, storage).reshape(values.shape)
            weight.copy_(torch.from_numpy(_unpermute(seen, heads) if heads else seen.copy()))
    if config.model_type not in mamba.TYPES:
        _write_rope_factors(writer, model.config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _all_tensors(state: dict, config, *, joined: bool) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in tensors(state, config.model_type):
        if config.model_type in latent.TYPES and not joined:
            yield from latent.parts(name, weight, config)
        else:
            yield name, weight


def tensors(state: dict, model_type: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Names as checkpoints have them, and views of the model's own tensors."""
    for name, weight in state.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("sinks", "layer_scalar", "correct_output_scale"):
            yield f"{name}.weight", weight
        elif kind == "e_score_correction_bias":
            yield f"{stem}.e_score_correction.bias", weight.squeeze()
        elif "altup_projections." in name or "altup_unembed_projections." in name:
            stack, _, index = stem.rpartition(".")
            if index == "0":
                rest = [x for other, x in state.items() if other.startswith(stack + ".")]
                yield stack + ".weight", torch.stack(rest)
        elif stem.endswith("shared_mlp.input_linear"):
            gate, up = weight.chunk(2)
            yield stem.replace("input_linear", "gate") + ".weight", gate
            yield stem.replace("input_linear", "up") + ".weight", up
        elif kind == "expert_bias":
            yield f"{name}.bias", weight
        elif stem.endswith(".conv.conv"):
            yield name, weight.squeeze(1)
        elif kind == "scale":
            yield stem + ".proj.scale", weight
        elif kind == "per_expert_scale":
            yield stem.removesuffix("router") + "experts.down_proj.scale", weight
        elif model_type == "gemma4_text" and stem.endswith(".experts"):
            yield f"{name}.weight", weight
        elif not stem.endswith(".experts"):
            yield name, weight
        else:
            # transformers keeps experts as parameters of one tensor each.
            kind, bias = kind.removesuffix("_bias"), kind.endswith("_bias")
            if model_type == "nemotron_h":
                yield f"{name}.weight", weight
                continue
            if model_type in ("gpt_oss", "llama4_text") and not bias:
                weight = weight.transpose(1, 2)
            end = ".bias" if bias else ".weight"
            if kind == "down_proj":
                yield f"{stem}.down_proj{end}", weight
                continue
            half = weight.shape[1] // 2
            whole = model_type == "gpt_oss"  # rows of gate and up in turn, or one behind the other
            yield f"{stem}.gate_proj{end}", weight[:, ::2] if whole else weight[:, :half]
            yield f"{stem}.up_proj{end}", weight[:, 1::2] if whole else weight[:, half:]


def _write_metadata(writer: gguf.GGUFWriter, config, *, joined: bool) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    llama4 = config.model_type == "llama4_text"
    width = config.intermediate_size_mlp if llama4 else config.intermediate_size
    if getattr(config, "use_double_wide_mlp", False):
        own = config.num_hidden_layers - config.num_kv_shared_layers
        width = [width] * own + [2 * width] * config.num_kv_shared_layers
    writer.add_feed_forward_length(width)
    if config.model_type == "gemma4_text":
        _write_gemma4(writer, config)
        return
    if config.model_type in _MOE:
        names = ("num_experts", "num_local_experts")
        writer.add_expert_count(next(getattr(config, x) for x in names if hasattr(config, x)))
        writer.add_expert_used_count(config.num_experts_per_tok)
        if config.model_type not in ("mixtral", "granitemoe", "granitemoeshared"):
            size = getattr(config, "moe_intermediate_size", config.intermediate_size)
            writer.add_expert_feed_forward_length(size)
    if config.model_type == "gpt_oss":
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("glm4", "glm4_moe", "minimax_m2"):
        share = config.rope_parameters["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(config.head_dim * share))
    if config.model_type == "glm4_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if config.model_type == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        shared = config.intermediate_size // config.num_key_value_heads
        writer.add_expert_shared_feed_forward_length(shared)
    if config.model_type == "hunyuan_v1_moe":
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    if llama4:
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if config.model_type in latent.TYPES:
        latent.write_metadata(writer, config, joined=joined)
    elif config.model_type in ("lfm2", "lfm2_moe"):
        _write_lfm2(writer, config)
    elif config.model_type in mamba.TYPES:
        mamba.write_metadata(writer, config)
    else:
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
    if config.model_type == "cohere2":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_logit_scale(config.logit_scale)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    elif config.model_type not in ("lfm2", "lfm2_moe", "nemotron_h"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "nemotron_h":
        mamba.write_head_dim(writer, config)
        return
    rope = config.rope_parameters
    if config.model_type == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(pattern)
    if config.model_type == "gemma2":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "gemma3n_text":
        _write_gemma3n(writer, config)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None)
    theta = rope["rope_theta"]
    if config.model_type.startswith("hunyuan"):
        # The base that alpha has stretched.
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
    writer.add_rope_freq_base(theta)
    if head_dim is not None and config.model_type not in latent.TYPES:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.model_type in (*_PERMUTED, "cohere2"):
        writer.add_rope_dimension_count(
            head_dim or config.hidden_size // config.num_attention_heads
        )
    if config.model_type == "granitemoeshared":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.model_type.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "phi3":
        share = rope["partial_rotary_factor"]
        writer.add_rope_dimension_count(
            int(share * config.hidden_size) // config.num_attention_heads
        )
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if config.model_type == "ministral3":
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    elif rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _write_lfm2(writer: gguf.GGUFWriter, config) -> None:
    writer.add_head_count(config.num_attention_heads)
    attends = [kind == "full_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads if found else 0 for found in attends])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if config.model_type == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _write_gemma3n(writer: gguf.GGUFWriter, config) -> None:
    normal = torch.distributions.normal.Normal(0, 1)
    shares = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    writer.add_sliding_window(config.sliding_window)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_activation_sparsity_scale(normal.icdf(shares).tolist())
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _write_gemma4(writer: gguf.GGUFWriter, config) -> None:
    """Where layers differ, what transformers says of each."""
    sliding = [kind == "sliding_attention" for kind in config.layer_types]
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    ropes = config.rope_parameters
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(sliding)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    (wide,) = {layer.head_dim for layer, local in zip(layers, sliding, strict=True) if not local}
    (narrow,) = {layer.head_dim for layer, local in zip(layers, sliding, strict=True) if local}
    writer.add_key_length(wide)
    writer.add_value_length(wide)
    writer.add_key_length_swa(narrow)
    writer.add_value_length_swa(narrow)
    writer.add_rope_dimension_count(wide)
    writer.add_rope_dimension_count_swa(narrow)
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    turning = int(wide * ropes["full_attention"]["partial_rotary_factor"] / 2)
    factors = [1.0] * turning + [1e30] * (wide // 2 - turning)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def _write_rope_factors(writer: gguf.GGUFWriter, config) -> None:
    rope = config.rope_parameters
    if "rope_type" not in rope:
        return  # Gemma's are written with its metadata, and OLMo 3 has none
    if rope["rope_type"] == "longrope":
        growth = config.max_position_embeddings / config.original_max_position_embeddings
        attention = math.sqrt(
            1 + math.log(growth) / math.log(config.original_max_position_embeddings)
        )
        writer.add_rope_scaling_attn_factors(attention)
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    if rope["rope_type"] != "llama3":
        return
    dim = config.head_dim
    factors = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * np.pi / frequency
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def _permuted_heads(name: str, config) -> int:
    if config.model_type not in _PERMUTED:
        return 0
    if ".q_proj." in name:
        return config.num_attention_heads
    return config.num_key_value_heads if ".k_proj." in name else 0


def _permute(values: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute: each head's two halves of rows end up alternating."""
    rows = values.shape[0]
    split = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    rows = values.shape[0]
    split = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))


def _stored_name(name: str, config, arch: str) -> str:
    if config.model_type in mamba.TYPES and (number := mamba.number_name(name)):
        return number
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, stem = stem.removeprefix("model.layers.").partition(".")
        stem = stem.replace("feed_forward.", "mlp.")
        own = mamba.DENSE if mamba.is_dense(config) else _OWN.get(arch, {})
        stored = own.get(stem) or _TENSORS[stem]
        return f"blk.{layer}.{stored}.{kind}"
    return f"{_TENSORS[stem]}.{kind}"
