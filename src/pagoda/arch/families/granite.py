"""Granite 3 and the dense ones of Granite 4 (arXiv 2408.13359): Llama with four multipliers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, ModelSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config_reader(config), "GraniteForCausalLM")


def hybrid_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Granite 4's class holds the dense models too, under the names of a shared expert."""
    reader = config_reader({**config, "intermediate_size": config.get("shared_intermediate_size")})
    kinds = set(reader.texts("layer_types", ("mamba",)))
    if kinds - {"attention", "full_attention"} or reader.raw("num_local_experts"):
        raise UnsupportedModelError(
            "This Granite 4 has Mamba layers or experts, which are not supported yet; its dense "
            "models (granite-4.0-micro) are."
        )
    rotated = reader.raw("position_embedding_type") == "rope"
    unrotated = () if rotated else range(reader.integer("num_hidden_layers", MAX_LAYERS))
    spec = _from_config(reader, "GraniteMoeHybridForCausalLM", unrotated)
    return replace(spec, weights=tuple(map(_shared_expert, spec.weights)))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "granite.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    bias = "blk.0.attn_q.bias" in tensor_names
    traits = Traits(bias, bias, mlp_bias="blk.0.ffn_gate.bias" in tensor_names)
    # `rope.scaling.finetuned` is how these files say that nothing is rotated.
    rotated = reader.flag("rope.scaling.finetuned", True)
    unrotated = () if rotated else range(reader.integer("block_count", MAX_LAYERS))
    spec = spec_from_gguf(
        reader,
        tokenizer,
        "GraniteForCausalLM",
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
