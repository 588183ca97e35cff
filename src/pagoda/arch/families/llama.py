"""Llama 2 and 3, SmolLM2, Mistral, Mixtral and their many fine-tunes (arXiv 2302.13971, 2407.21783,
2401.04088)."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.pixtral import with_gguf_tower
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules, with_experts
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, MoeSpec, WeightRule

_MIXTRAL = "MixtralForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, mlp_bias=reader.flag("mlp_bias", False))
    return spec_from_config(reader, "LlamaForCausalLM", traits)


def mistral_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Mistral 7B is Llama, but that version 0.1 has a sliding window (arXiv 2310.06825)."""
    reader = config_reader(config)
    return spec_from_config(reader, "MistralForCausalLM", Traits(), every_window(reader))


def mixtral_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Mistral with experts."""
    reader = config_reader(config)
    spec = spec_from_config(reader, _MIXTRAL, Traits(), every_window(reader))
    count = reader.integer("num_local_experts", MAX_EXPERTS, 8)
    top_k = reader.integer("num_experts_per_tok", count, 2)
    experts = _experts(count, top_k, reader.integer("intermediate_size", MAX_WIDTH))
    source = "model.layers.{layer}.block_sparse_moe."
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (source + "gate.weight",)),
        *expert_rules(experts, "single", source, names=("w1", "w3", "w2")),
    ]
    return with_experts(spec, experts, range(len(spec.layers)), rules)


def _experts(count: int, top_k: int, size: int) -> MoeSpec:
    return MoeSpec(count, top_k, size, "topk_softmax")


def every_window(reader: Reader) -> tuple[int | None, ...]:
    """`sliding_window`, if there is one, of every layer."""
    if not reader.has("sliding_window"):
        return ()
    window = reader.integer("sliding_window", MAX_CONTEXT)
    return (window,) * reader.integer("num_hidden_layers", MAX_LAYERS)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "llama.")
    count = reader.integer("expert_count", MAX_EXPERTS, 0, minimum=0)
    traits = Traits(
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
    )
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    name = _MIXTRAL if count else "LlamaForCausalLM"
    # llama.cpp's LlamaModel.permute interleaves q and k rows (conversion/llama.py).
    spec = spec_from_gguf(reader, tokenizer, name, traits, tensor_names, interleaved=True)
    if not count:
        # Mistral Small 3 in files of 2025.
        return with_gguf_tower(spec, metadata, tensor_names)
    top_k = reader.integer("expert_used_count", count)
    experts = _experts(count, top_k, reader.integer("feed_forward_length", MAX_WIDTH))
    # Files of before April 2024 have a tensor for each expert.
    layout: Literal["single", "stacked"] = "stacked"
    if "blk.0.ffn_down.0.weight" in tensor_names:
        layout = "single"
    rules = gguf_rules(experts, layout)
    return with_experts(spec, experts, range(len(spec.layers)), rules)
