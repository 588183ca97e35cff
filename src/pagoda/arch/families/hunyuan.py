"""Hunyuan 0.5B to 7B, dense, and A13B, a mixture of experts (github.com/Tencent-Hunyuan): Llama,
whose heads of q and k are normalized behind their rotation; in A13B one expert is shared."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules, shared_rules, with_experts
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_HEADS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, ModelSpec, MoeSpec, SharedExpert, WeightRule
from pagoda.base.errors import UnsupportedModelError

_DENSE, _MOE = "HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"
_MLP = "model.layers.{layer}.mlp."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(_reader(config), _DENSE)


def moe_from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = _reader(config)
    spec = _from_config(reader, _MOE)
    count = _same_everywhere(reader, "num_experts")
    size = reader.integer("intermediate_size", MAX_WIDTH)
    for name, only in (("num_shared_expert", 1), ("moe_intermediate_size", size)):
        if reader.has(name) and _same_everywhere(reader, name) != only:
            raise UnsupportedModelError(
                f"config.json: {name} is {reader.raw(name)}, which is not supported; in Hunyuan "
                f"A13B it is {only}."
            )
    experts = _experts(count, _same_everywhere(reader, "moe_topk"), size, size)
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (_MLP + "gate.wg.weight",)),
        *expert_rules(experts, "single", _MLP),
        *shared_rules(experts, _MLP + "shared_mlp.{part}_proj"),
    ]
    return with_experts(spec, experts, range(len(spec.layers)), rules)


def _reader(config: Mapping[str, Any]) -> Reader:
    """With the base that rotary frequencies have once `alpha` has stretched it, which other
    programs call dynamic scaling."""
    reader = config_reader({"rms_norm_eps": 1e-5, **config})
    if reader.flag("use_cla", False):
        raise UnsupportedModelError(
            "config.json: use_cla is true, and layers share keys and values, which is not "
            "supported. Take Hunyuan A13B or a dense one of 2025, whose layers do not."
        )
    name = "rope_parameters" if reader.has("rope_parameters") else "rope_scaling"
    section = reader.section(name)
    kind = None if section is None else section.raw("rope_type") or section.raw("type")
    if section is None or kind != "dynamic" or not section.raw("alpha"):
        return reader
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    whole = reader.integer("hidden_size", MAX_WIDTH) // heads
    size = reader.integer("head_dim", MAX_WIDTH, whole, minimum=4)
    holder = section if section.has("rope_theta") else reader
    theta = holder.number("rope_theta", 10000.0, above=1.0)
    theta *= section.number("alpha") ** (size / (size - 2))
    return config_reader({"rms_norm_eps": 1e-5, **config, name: None, "rope_theta": theta})


def _from_config(reader: Reader, architecture: str) -> ModelSpec:
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    spec = _turned(spec_from_config(reader, architecture, traits))
    names = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}
    return replace(spec, weights=tuple(_renamed(rule, names) for rule in spec.weights))


def _renamed(rule: WeightRule, names: Mapping[str, str]) -> WeightRule:
    (first, *others) = rule.sources
    for old, new in names.items():
        first = first.replace(f".{old}.", f".{new}.")
    return replace(rule, sources=(first, *others))


def _same_everywhere(reader: Reader, name: str) -> int:
    """A number, or a list of equal ones for all layers."""
    found = reader.raw(name)
    values = found if isinstance(found, list) and found else [found]
    if any(value != values[0] for value in values):
        raise UnsupportedModelError(
            f"config.json: {name} differs between layers ({found}), which is not supported; known "
            "is Hunyuan A13B, where it does not."
        )
    return Reader({name: values[0]}, "config.json").integer(name, MAX_EXPERTS)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "hunyuan-dense.", _DENSE)


def moe_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "hunyuan-moe."
    spec = _from_gguf(metadata, tensor_names, prefix, _MOE)
    reader = Reader(metadata, "GGUF metadata", prefix)
    count = reader.integer("expert_count", MAX_EXPERTS)
    experts = _experts(
        count,
        reader.integer("expert_used_count", count),
        reader.integer("expert_feed_forward_length", MAX_WIDTH),
        reader.integer("expert_shared_feed_forward_length", MAX_WIDTH),
    )
    return with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))


def _from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str, architecture: str
) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(qk_norm=True)
    return _turned(spec_from_gguf(reader, tokenizer, architecture, traits, tensor_names))


def _turned(spec: ModelSpec) -> ModelSpec:
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, qk_norm_turned=True))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    return replace(spec, layers=layers)


def _experts(count: int, top_k: int, size: int, shared: int) -> MoeSpec:
    return MoeSpec(count, top_k, size, renormalize=True, shared=SharedExpert(shared))
