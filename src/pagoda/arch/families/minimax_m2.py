"""MiniMax M2 and M2.1 (github.com/MiniMax-AI/MiniMax-M2): mixtures of experts that are chosen by a
sigmoid and a correction; q and k are normalized over all heads, of which half is rotated."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.moe import (
    MAX_EXPERTS,
    correction_rules,
    expert_rules,
    gguf_rules,
    with_experts,
)
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, ModelSpec, MoeSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

_NAME = "MiniMaxM2ForCausalLM"
_TRAITS = Traits(qk_norm=True)


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader({"head_dim": 128, **config})
    _refuse_other_kinds(reader)
    if reader.has("rotary_dim"):  # as the published files say it
        head_dim = reader.integer("head_dim", MAX_WIDTH)
        share = reader.integer("rotary_dim", head_dim) / head_dim
        reader = config_reader({"head_dim": 128, "partial_rotary_factor": share, **config})
    spec = _normed_whole(spec_from_config(reader, _NAME, _TRAITS))
    count = reader.integer("num_local_experts", MAX_EXPERTS)
    top_k = reader.integer("num_experts_per_tok", count)
    experts = _experts(count, top_k, reader.integer("intermediate_size", MAX_WIDTH))
    source = "model.layers.{layer}.block_sparse_moe."
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (source + "gate.weight",)),
        *correction_rules(source + "e_score_correction_bias"),
        *expert_rules(experts, "single", source, names=("w1", "w3", "w2")),
    ]
    return with_experts(spec, experts, range(len(spec.layers)), rules)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "minimax-m2.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    spec = _normed_whole(spec_from_gguf(reader, tokenizer, _NAME, _TRAITS, tensor_names))
    count = reader.integer("expert_count", MAX_EXPERTS)
    top_k = reader.integer("expert_used_count", count)
    experts = _experts(count, top_k, reader.integer("expert_feed_forward_length", MAX_WIDTH))
    return with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))


def _refuse_other_kinds(reader: Reader) -> None:
    """What the class of the published files could have, and they have not."""
    found = {
        "use_qk_norm": reader.flag("use_qk_norm", True) is not True,
        "qk_norm_type": reader.text("qk_norm_type", "per_layer") != "per_layer",
        "scoring_func": reader.text("scoring_func", "sigmoid") != "sigmoid",
        "use_routing_bias": reader.flag("use_routing_bias", True) is not True,
        "shared_intermediate_size": reader.raw("shared_intermediate_size") not in (None, 0),
        "attn_type_list": any(kind != 1 for kind in reader.listed("attn_type_list")),
    }
    for name, differs in found.items():
        if differs:
            raise UnsupportedModelError(
                f"config.json: {name} is {reader.raw(name)!r}, which MiniMax M2 and M2.1 do not "
                "have; they are supported."
            )


def _normed_whole(spec: ModelSpec) -> ModelSpec:
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, qk_norm_whole=True))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    return replace(spec, layers=layers)


def _experts(count: int, top_k: int, size: int) -> MoeSpec:
    return MoeSpec(count, top_k, size, "sigmoid", corrected=True, renormalize=True)
