"""ERNIE 4.5 (ernie.baidu.com/blog/posts/ernie4.5), dense and as mixtures of experts: Llama, whose
experts are chosen by a softmax and a correction."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.moe import (
    MAX_EXPERTS,
    correction_rules,
    expert_rules,
    gguf_rules,
    shared_rules,
    with_experts,
)
from pagoda.arch.names import Traits, with_pairs_side_by_side
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, MoeSpec, SharedExpert, WeightRule
from pagoda.base.errors import UnsupportedModelError

_DENSE, _MOE = "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = _reader({"head_dim": 128, **config})
    bias = reader.flag("use_bias", False)
    return _from_config(reader, _DENSE, Traits(bias, bias, bias))


def moe_from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = _reader(config)
    if reader.flag("use_bias", False):
        raise UnsupportedModelError(
            "config.json asks for use_bias, with which no mixture of ERNIE 4.5 was published; "
            "those without it are supported."
        )
    spec = _from_config(reader, _MOE, Traits())
    num_layers = len(spec.layers)
    count = reader.integer("moe_num_experts", MAX_EXPERTS)
    size = reader.integer("moe_intermediate_size", MAX_WIDTH)
    shared = reader.integer("moe_num_shared_experts", MAX_EXPERTS, 2, minimum=0)
    experts = _experts(count, reader.integer("moe_k", count), size, shared * size)
    first = reader.integer("moe_layer_start_index", num_layers, 1, minimum=0)
    last = reader.integer("moe_layer_end_index", num_layers, -1, minimum=-1)
    last = num_layers - 1 if last == -1 else last
    mlp = "model.layers.{layer}.mlp."
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (mlp + "gate.weight",)),
        *correction_rules(mlp + "moe_statics.e_score_correction_bias"),
        *expert_rules(experts, "single", mlp),
        *shared_rules(experts, mlp + "shared_experts.{part}_proj"),
    ]
    step = reader.integer("moe_layer_interval", MAX_LAYERS, 1)
    spec = with_experts(spec, experts, _sparse(first, last, step), rules)
    # Layers that guess tokens ahead.
    return replace(spec, ignored_weights=(*spec.ignored_weights, "model.mtp_*"))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "ernie4_5.", _DENSE)


def moe_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "ernie4_5-moe."
    reader = Reader(metadata, "GGUF metadata", prefix)
    spec = _from_gguf(metadata, tensor_names, prefix, _MOE)
    count = reader.integer("expert_count", MAX_EXPERTS)
    experts = _experts(
        count,
        reader.integer("expert_used_count", count),
        reader.integer("expert_feed_forward_length", MAX_WIDTH),
        reader.integer("expert_shared_feed_forward_length", MAX_WIDTH, 0, minimum=0),
    )
    first = reader.integer("leading_dense_block_count", MAX_LAYERS, 0, minimum=0)
    step = reader.integer("interleave_moe_layer_step", MAX_LAYERS, 1)
    layers = _sparse(first, len(spec.layers) - 1, step)
    return with_experts(spec, experts, layers, gguf_rules(experts))


def _reader(config: Mapping[str, Any]) -> Reader:
    # As both configurations.
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True}
    return config_reader({**defaults, **config})


def _from_config(reader: Reader, architecture: str, traits: Traits) -> ModelSpec:
    spec = spec_from_config(reader, architecture, traits)
    size = spec.attentions[0].head_dim
    return replace(spec, weights=with_pairs_side_by_side(spec.weights, size, size))


def _from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str, architecture: str
) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    return spec_from_gguf(reader, tokenizer, architecture, Traits(), tensor_names, interleaved=True)


def _experts(count: int, top_k: int, size: int, shared: int) -> MoeSpec:
    return MoeSpec(
        num_experts=count,
        top_k=top_k,
        intermediate_size=size,
        corrected=True,
        renormalize=True,
        shared=SharedExpert(shared) if shared else None,
    )


def _sparse(first: int, last: int, step: int) -> list[int]:
    return [layer for layer in range(first, last + 1) if (layer + 1) % step == 0]
