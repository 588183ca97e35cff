"""Qwen3 as a mixture of experts (arXiv 2505.09388): 30B-A3B, 235B-A22B, Qwen3-Coder."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.internvl_vision import with_gguf_tower
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.moe import MAX_EXPERTS, gguf_rules, single_rules, with_experts
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, MoeSpec

_NAME = "Qwen3MoeForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    spec = spec_from_config(reader, _NAME, traits, layer_windows(reader))
    # transformers 5 saves the count under the second name.
    name = "num_experts" if reader.has("num_experts") else "num_local_experts"
    count = reader.integer(name, MAX_EXPERTS)
    experts = MoeSpec(
        num_experts=count,
        top_k=reader.integer("num_experts_per_tok", count),
        intermediate_size=reader.integer("moe_intermediate_size", MAX_WIDTH),
        renormalize=reader.flag("norm_topk_prob", False),
    )
    return with_experts(spec, experts, sparse_layers(reader), single_rules(experts))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "qwen3moe.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    spec = spec_from_gguf(reader, tokenizer, _NAME, Traits(qk_norm=True), tensor_names)
    count = reader.integer("expert_count", MAX_EXPERTS)
    experts = MoeSpec(
        num_experts=count,
        top_k=reader.integer("expert_used_count", count),
        intermediate_size=reader.integer("expert_feed_forward_length", MAX_WIDTH),
        # llama.cpp renormalizes for this architecture, whatever norm_topk_prob was.
        renormalize=True,
    )
    spec = with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))
    return with_gguf_tower(spec, metadata, tensor_names)


def sparse_layers(reader: Reader) -> list[int]:
    """Each `decoder_sparse_step`-th layer, but for those that config.json lists as dense."""
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    step = reader.integer("decoder_sparse_step", MAX_LAYERS, 1)
    listed = reader.listed("mlp_only_layers")
    if not all(type(index) is int for index in listed):
        raise reader.error("mlp_only_layers", f"must list layers, not {listed!r}")
    return [index for index in range(num_layers) if index not in listed and (index + 1) % step == 0]
