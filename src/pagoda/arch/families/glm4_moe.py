"""GLM-4.5, 4.5-Air and 4.6 (arXiv 2508.06471): mixtures of experts behind one to three dense
layers. Experts are chosen by a sigmoid and a correction, one is shared, and half of each head is
rotated."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.draft_head import with_gguf_draft_head, with_nextn_draft_head
from pagoda.arch.moe import (
    MAX_EXPERTS,
    correction_rules,
    expert_rules,
    gguf_rules,
    shared_rules,
    with_experts,
)
from pagoda.arch.names import Traits, with_sources
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, MoeSpec, SharedExpert, WeightRule
from pagoda.base.errors import UnsupportedModelError

_NAME = "Glm4MoeForCausalLM"
_PREFIX = "glm4moe."
_SIGMOID = 2
"""GGUF's number for it."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As Glm4MoeConfig.
    reader = config_reader({"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, **config})
    traits = Traits(
        qkv_bias=reader.flag("attention_bias", False), qk_norm=reader.flag("use_qk_norm", False)
    )
    spec = spec_from_config(reader, _NAME, traits)
    count = reader.integer("n_routed_experts", MAX_EXPERTS)
    experts = _experts(
        reader,
        count=count,
        top_k=reader.integer("num_experts_per_tok", count),
        size=reader.integer("moe_intermediate_size", MAX_WIDTH),
        shared=reader.integer("n_shared_experts", MAX_EXPERTS, 1, minimum=0),
        groups=("n_group", "topk_group"),
        renormalize=reader.flag("norm_topk_prob", True),
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    first = reader.integer("first_k_dense_replace", MAX_LAYERS, 1, minimum=0)
    mlp = "model.layers.{layer}.mlp."
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (mlp + "gate.weight",)),
        *correction_rules(mlp + "gate.e_score_correction_bias"),
        *expert_rules(experts, "single", mlp),
        *shared_rules(experts, mlp + "shared_experts.{part}_proj"),
    ]
    spec = with_experts(spec, experts, range(first, len(spec.layers)), rules)
    return with_nextn_draft_head(spec, reader)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", _PREFIX)
    heads = reader.integer("nextn_predict_layers", MAX_LAYERS, 0, minimum=0)
    blocks = reader.integer("block_count", MAX_LAYERS, minimum=heads + 1)
    # The count includes the draft heads.
    metadata = {**metadata, _PREFIX + "block_count": blocks - heads}
    reader = Reader(metadata, "GGUF metadata", _PREFIX)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
    )
    spec = spec_from_gguf(reader, tokenizer, _NAME, traits, tensor_names)
    norm = {"mlp_norm.weight": "blk.{layer}.post_attention_norm.weight"}
    heads_of = tuple(f"blk.{block}.*" for block in range(blocks - heads, blocks))
    spec = replace(
        spec,
        weights=with_sources(spec.weights, norm),
        ignored_weights=(*spec.ignored_weights, *heads_of),
    )
    if reader.integer("expert_gating_func", 16, _SIGMOID) != _SIGMOID:
        raise UnsupportedModelError(
            "The GGUF's router is not a sigmoid (expert_gating_func); GLM-4.5 and 4.6 have one."
        )
    count = reader.integer("expert_count", MAX_EXPERTS)
    experts = _experts(
        reader,
        count=count,
        top_k=reader.integer("expert_used_count", count),
        size=reader.integer("expert_feed_forward_length", MAX_WIDTH),
        shared=reader.integer("expert_shared_count", MAX_EXPERTS, 0, minimum=0),
        groups=("expert_group_count", "expert_group_used_count"),
        renormalize=reader.flag("expert_weights_norm", False),
        scale=reader.number("expert_weights_scale", 1.0),
    )
    first = reader.integer("leading_dense_block_count", MAX_LAYERS, 0, minimum=0)
    spec = with_experts(spec, experts, range(first, len(spec.layers)), gguf_rules(experts))
    return with_gguf_draft_head(spec, reader, tensor_names)


def _experts(
    reader: Reader,
    *,
    count: int,
    top_k: int,
    size: int,
    shared: int,
    groups: tuple[str, str],
    renormalize: bool,
    scale: float,
) -> MoeSpec:
    """`groups`: the names of the number of groups, and of those that are open to choice."""
    lying, opened = groups
    num_groups = reader.integer(lying, 64, 1)
    top_groups = reader.integer(opened, num_groups, 1)
    each = count // num_groups
    if count % num_groups or (num_groups > 1 and each < 2):
        raise reader.error(lying, f"is {num_groups}, which {count} experts cannot share")
    if each * top_groups < top_k:
        raise reader.error(opened, f"is {top_groups}, whose experts are fewer than {top_k}")
    return MoeSpec(
        num_experts=count,
        top_k=top_k,
        intermediate_size=size,
        scoring="sigmoid",
        corrected=True,
        groups=num_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        scale=scale,
        shared=SharedExpert(shared * size) if shared else None,
    )
