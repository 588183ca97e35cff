"""Qwen3-VL as a mixture of experts (arXiv 2511.21631): 30B-A3B, 235B-A22B."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.families.qwen3_moe import sparse_layers
from pagoda.arch.families.qwen3_vl import dense_from_config, dense_from_gguf, text_reader
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules, with_experts
from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, MoeSpec, WeightRule

_NAME = "Qwen3VLMoeForConditionalGeneration"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = text_reader(config)
    name = "num_experts" if reader.has("num_experts") else "num_local_experts"
    experts = _experts(reader, name, "num_experts_per_tok", "moe_intermediate_size")
    spec = dense_from_config(config, _NAME)
    return with_experts(spec, experts, sparse_layers(reader), _config_rules(experts))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "qwen3vlmoe.")
    names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
    experts = _experts(reader, *names)
    spec = dense_from_gguf(metadata, tensor_names, reader, (_NAME, "Qwen3MoeForCausalLM"))
    return with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))


def _experts(reader: Reader, count_name: str, top_k: str, size: str) -> MoeSpec:
    """The chosen experts' weights always sum to 1 (modeling_qwen3_vl_moe.py)."""
    count = reader.integer(count_name, MAX_EXPERTS)
    return MoeSpec(
        num_experts=count,
        top_k=reader.integer(top_k, count),
        intermediate_size=reader.integer(size, MAX_WIDTH),
        renormalize=True,
    )


def _config_rules(experts: MoeSpec) -> list[WeightRule]:
    """Names as the hub's checkpoints have them."""
    source = "model.language_model.layers.{layer}.mlp."
    router = WeightRule("layers.{layer}.mlp.router.weight", (source + "gate.weight",))
    return [router, *expert_rules(experts, "stacked", source)]
