"""An encoder of transformers as llama.cpp's converter would write it (conversion/bert.py).

Written from those facts with llama.cpp's own gguf package; nothing of Pagoda takes part.
"""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

BERT = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "classifier.dense": "cls", "classifier.out_proj": "cls.output",
}  # fmt: skip
LEFT_OUT = ("pooler.dense",)
_NOMIC = {
    "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_mlp_layernorm": "layer_output_norm",
}  # fmt: skip
_MODERN = {
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down", "final_norm": "output_norm",
    "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output",
}  # fmt: skip
_GEMMA = {
    "embed_tokens": "token_embd", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "norm": "output_norm",
}  # fmt: skip
_ARCHS = {
    "bert": ("bert", BERT), "roberta": ("bert", BERT), "xlm-roberta": ("bert", BERT),
    "nomic_bert": ("nomic-bert", _NOMIC), "modernbert": ("modern-bert", _MODERN),
    "gemma3_text": ("gemma-embedding", _GEMMA),
}  # fmt: skip


def write(
    path: Path,
    model: PreTrainedModel,
    pooling: gguf.PoolingType,
    dense: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write `model` to `path`, all of it in F32, with the matrices of linear layers behind it."""
    config = model.config
    arch, names = _ARCHS[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    offset = config.pad_token_id + 1 if "roberta" in config.model_type else 0
    _write_metadata(writer, config, offset, pooling)
    for name, weight in model.state_dict().items():
        stored = _stored_name(name, names)
        if stored is not None:
            values = weight[offset:] if stored == "position_embd.weight" else weight
            # Gemma's norms add 1 to their weights, which the converter does beforehand.
            one = names is _GEMMA and stored.endswith("norm.weight")
            writer.add_tensor(stored, np.ascontiguousarray(values.numpy() + np.float32(one)))
    for name, matrix in (dense or {}).items():
        writer.add_dense_features_dims(name, matrix.shape[1], matrix.shape[0])
        writer.add_tensor(f"{name}.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored_name(name: str, names: dict[str, str]) -> str | None:
    for prefix in ("bert.", "roberta.", "model."):
        name = name.removeprefix(prefix)
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    if stem in names:
        return f"{names[stem]}.{kind}"
    if "layer" in parts or "layers" in parts:
        at = next(index for index, part in enumerate(parts) if part.isdigit())
        return f"blk.{parts[at]}.{names['.'.join(parts[at + 1 :])]}.{kind}"
    assert stem in LEFT_OUT or kind == "position_ids", name
    return None


def _write_metadata(
    writer: gguf.GGUFWriter, config, offset: int, pooling: gguf.PoolingType
) -> None:
    modern, gemma = config.model_type == "modernbert", config.model_type == "gemma3_text"
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - offset)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_pooling_type(pooling)
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    if gemma:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.to_dict()["sliding_window"])  # as config.json has it
        return
    writer.add_layer_norm_eps(config.norm_eps if modern else config.layer_norm_eps)
    writer.add_causal_attention(False)
    if modern:
        ropes = config.rope_parameters
        writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config.local_attention)
        writer.add_sliding_window_pattern(3)
        # Newer than the package: keys by llama.cpp's constants.
        writer.add_string("modern-bert.hidden_activation", config.hidden_activation)
        kinds = {"cls": gguf.PoolingType.CLS, "mean": gguf.PoolingType.MEAN}
        kind = kinds[config.classifier_pooling]
        writer.add_uint32("modern-bert.classifier.pooling_type", kind)
        return
    writer.add_token_type_count(config.type_vocab_size)
    if config.model_type == "nomic_bert":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
