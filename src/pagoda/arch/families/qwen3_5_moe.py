"""Qwen3.5 and 3.6 as mixtures of experts: 35B-A3B, 122B-A10B, 397B-A17B."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.draft_head import with_config_draft_head, with_gguf_draft_head
from pagoda.arch.families.qwen3_5 import (
    LANGUAGE_MODEL,
    gguf_inputs,
    hybrid_from_config,
    hybrid_from_gguf,
    with_tower,
)
from pagoda.arch.moe import MAX_EXPERTS, gguf_rules, single_rules, with_experts
from pagoda.arch.read import MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, MoeSpec, SharedExpert

_ARCHITECTURE = "Qwen3_5MoeForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return with_config_draft_head(_from_config(config, "model."), config)


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    spec = _from_config(config, LANGUAGE_MODEL)
    spec = with_tower(spec, config, "Qwen3_5MoeForConditionalGeneration")
    return with_config_draft_head(spec, config)


def _from_config(config: Mapping[str, Any], prefix: str) -> ModelSpec:
    experts = config_experts(config_reader(config), renormalize=True)
    # No layer is dense, and config.json gives such layers no size.
    config = {"intermediate_size": experts.intermediate_size, **config}
    spec = hybrid_from_config(config, _ARCHITECTURE, prefix)
    rules = single_rules(experts, prefix + "layers.{layer}.mlp.")
    return with_experts(spec, experts, range(len(spec.layers)), rules)


def config_experts(reader: Reader, *, renormalize: bool) -> MoeSpec:
    count = reader.integer("num_experts", MAX_EXPERTS)
    return MoeSpec(
        num_experts=count,
        top_k=reader.integer("num_experts_per_tok", count),
        intermediate_size=reader.integer("moe_intermediate_size", MAX_WIDTH),
        renormalize=renormalize,
        shared=SharedExpert(reader.integer("shared_expert_intermediate_size", MAX_WIDTH), True),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "qwen35moe."
    experts = gguf_experts(Reader(metadata, "GGUF metadata", prefix))
    metadata = {prefix + "feed_forward_length": experts.intermediate_size, **metadata}
    spec = hybrid_from_gguf(metadata, tensor_names, prefix, _ARCHITECTURE, gguf_inputs)
    spec = with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))
    return with_gguf_draft_head(spec, Reader(metadata, "GGUF metadata", prefix), tensor_names)


def gguf_experts(reader: Reader) -> MoeSpec:
    """llama.cpp renormalizes, whatever config.json said."""
    count = reader.integer("expert_count", MAX_EXPERTS)
    size = reader.integer("expert_feed_forward_length", MAX_WIDTH)
    shared = reader.integer("expert_shared_feed_forward_length", MAX_WIDTH, size)
    return MoeSpec(
        num_experts=count,
        top_k=reader.integer("expert_used_count", count),
        intermediate_size=size,
        renormalize=True,
        shared=SharedExpert(shared, gated=True),
    )
