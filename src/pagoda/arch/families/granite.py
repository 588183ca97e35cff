"""Granite 3 and 4 (arXiv 2408.13359), dense and as mixtures of experts: Llama with four
multipliers. In Granite 4's hybrids most layers are Mamba-2's (arXiv 2405.21060), not attention."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.hybrid import (
    attention_metadata,
    recurrent_layers,
    with_recurrent,
    without_kv_heads,
)
from pagoda.arch.mamba2 import (
    mamba2_from_config,
    mamba2_from_gguf,
    mamba2_gguf_rules,
    mamba2_rules,
)
from pagoda.arch.moe import MAX_EXPERTS, gguf_rules, with_experts
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import (
    AttentionSpec,
    ExpertTensors,
    ModelSpec,
    MoeSpec,
    SharedExpert,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

_KINDS = {"attention": False, "full_attention": False, "mamba": True, "linear_attention": True}
"""Names of kinds of layers in Granite 4's config.json, and which of them are Mamba's."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config_reader(config), "GraniteForCausalLM")


def moe_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _moe_from_config(config_reader(config), "GraniteMoeForCausalLM", shared=0)


def shared_moe_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """With an expert of every token, where there is one."""
    reader = config_reader(config)
    shared = reader.integer("shared_intermediate_size", MAX_WIDTH, 1024, minimum=0)
    return _moe_from_config(reader, "GraniteMoeSharedForCausalLM", shared)


def _moe_from_config(reader: Reader, architecture: str, shared: int) -> ModelSpec:
    return _with_experts(_from_config(reader, architecture), reader, shared)


def _with_experts(spec: ModelSpec, reader: Reader, shared: int) -> ModelSpec:
    count = reader.integer("num_local_experts", MAX_EXPERTS, 8)
    top_k = reader.integer("num_experts_per_tok", count, 2)
    experts = _experts(count, top_k, reader.integer("intermediate_size", MAX_WIDTH), shared)
    param, source = "layers.{layer}.mlp.", "model.layers.{layer}.block_sparse_moe."
    stored = ExpertTensors(count, "stacked")
    rules = [
        WeightRule(param + "router.weight", (source + "router.layer.weight",)),
        WeightRule(
            param + "gate_up.weight",
            (source + "input_linear.weight",),
            experts=replace(stored, parts=2),
        ),
        WeightRule(param + "down.weight", (source + "output_linear.weight",), experts=stored),
    ]
    if shared:
        mlp = "model.layers.{layer}.shared_mlp."
        rules.append(WeightRule(param + "shared.gate_up.weight", (mlp + "input_linear.weight",)))
        rules.append(WeightRule(param + "shared.down.weight", (mlp + "output_linear.weight",)))
    return with_experts(spec, experts, range(len(spec.layers)), rules)


def _experts(count: int, top_k: int, size: int, shared: int) -> MoeSpec:
    beside = SharedExpert(shared) if shared else None
    return MoeSpec(count, top_k, size, "topk_softmax", shared=beside)


def hybrid_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Granite 4's class holds the dense models too, under the names of a shared expert."""
    given = config_reader(config)
    shared = given.integer("shared_intermediate_size", MAX_WIDTH, 1024)
    reader = config_reader({**config, "intermediate_size": shared})
    rotated = reader.raw("position_embedding_type") == "rope"
    count = reader.integer("num_hidden_layers", MAX_LAYERS)
    spec = _from_config(reader, "GraniteMoeHybridForCausalLM", () if rotated else range(count))
    spec = replace(spec, weights=tuple(map(_shared_expert, spec.weights)))
    if reader.integer("num_local_experts", MAX_EXPERTS, 8, minimum=0):
        spec = _with_experts(spec, given, shared)
    recurrent = [True] * count
    if reader.has("layer_types"):
        recurrent = recurrent_layers(reader, count, _KINDS)
    if not any(recurrent):
        return spec
    eps = reader.number("rms_norm_eps", 1e-6, below=1.0)
    mixer = mamba2_from_config(reader, spec.hidden_size, eps)
    rules = mamba2_rules(mixer, "model.layers.{layer}.mamba.")
    return with_recurrent(spec, mixer, recurrent, rules)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "granite.", "GraniteForCausalLM")


def moe_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "granitemoe."
    reader = Reader(metadata, "GGUF metadata", prefix)
    name = "GraniteMoeSharedForCausalLM" if _shared_width(reader) else "GraniteMoeForCausalLM"
    return _with_gguf_experts(_from_gguf(metadata, tensor_names, prefix, name), reader)


def hybrid_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "granitehybrid."
    given = Reader(metadata, "GGUF metadata", prefix)
    read = attention_metadata(metadata, prefix)
    mixed = given.integer("expert_count", MAX_EXPERTS, 0, minimum=0)
    if not mixed and (shared := _shared_width(given)):
        read[prefix + "feed_forward_length"] = shared
    spec = _from_gguf(read, tensor_names, prefix, "GraniteMoeHybridForCausalLM")
    if mixed:
        spec = _with_gguf_experts(spec, given)
    if any(attention.rope is not None for attention in spec.attentions):
        raise UnsupportedModelError(
            "This GGUF's layers of attention are rotated, as Bamba's are; of this architecture "
            "Granite 4's hybrids are supported, where nothing is. Take Bamba in safetensors."
        )
    mixer = mamba2_from_gguf(given, tensor_names)
    recurrent = without_kv_heads(metadata, prefix)
    return with_recurrent(spec, mixer, recurrent, mamba2_gguf_rules(mixer))


def _shared_width(reader: Reader) -> int:
    return reader.integer("expert_shared_feed_forward_length", MAX_WIDTH, 0, minimum=0)


def _with_gguf_experts(spec: ModelSpec, reader: Reader) -> ModelSpec:
    shared = _shared_width(reader)
    count = reader.integer("expert_count", MAX_EXPERTS)
    top_k = reader.integer("expert_used_count", count)
    experts = _experts(count, top_k, reader.integer("feed_forward_length", MAX_WIDTH), shared)
    return with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))


def _from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str, architecture: str
) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    bias = any(name.endswith(".attn_q.bias") for name in tensor_names)
    traits = Traits(bias, bias, mlp_bias="blk.0.ffn_gate.bias" in tensor_names)
    # `rope.scaling.finetuned` is how these files say that nothing is rotated.
    rotated = reader.flag("rope.scaling.finetuned", True)
    unrotated = () if rotated else range(reader.integer("block_count", MAX_LAYERS))
    spec = spec_from_gguf(
        reader,
        tokenizer,
        architecture,
        traits,
        tensor_names,
        interleaved=True,
        unrotated=unrotated,
    )
    head_dim = spec.attentions[0].head_dim
    return _multiplied(
        spec,
        attention=reader.number("attention.scale", head_dim**-0.5),
        embedding=reader.number("embedding_scale", 1.0),
        residual=reader.number("residual_scale", 1.0),
        logits=reader.number("logit_scale", 1.0),
    )


def _from_config(reader: Reader, architecture: str, unrotated: Collection[int] = ()) -> ModelSpec:
    bias = reader.flag("attention_bias", False)
    traits = Traits(bias, bias, mlp_bias=reader.flag("mlp_bias", False))
    return _multiplied(
        spec_from_config(reader, architecture, traits, unrotated=unrotated),
        attention=reader.number("attention_multiplier", 1.0),
        embedding=reader.number("embedding_multiplier", 1.0),
        residual=reader.number("residual_multiplier", 1.0),
        logits=reader.number("logits_scaling", 1.0),
    )


def _multiplied(
    spec: ModelSpec, *, attention: float, embedding: float, residual: float, logits: float
) -> ModelSpec:
    """The residual multiplier m needs no operation: divide the whole stream by m. What a layer
    adds is then added as it is, embeddings grow by 1 / m, and since x / rms(x) is the same for
    x / m, norms only see their eps divided by m * m."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, scale=attention))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    return replace(
        spec,
        layers=layers,
        norm_eps=spec.norm_eps / residual**2,
        embedding_scale=embedding / residual,
        logit_scale=1.0 / logits,
    )


def _shared_expert(rule: WeightRule) -> WeightRule:
    if rule.param.endswith("mlp.gate_up.weight"):
        return replace(rule, sources=("model.layers.{layer}.shared_mlp.input_linear.weight",))
    if rule.param.endswith("mlp.down.weight"):
        return replace(rule, sources=("model.layers.{layer}.shared_mlp.output_linear.weight",))
    return rule
