"""LFM2 and LFM2.5 (arXiv 2511.23404), dense and as mixtures of experts: gated short convolutions
between layers of attention."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.grouped_moe import SIGMOID, with_gguf_experts
from pagoda.arch.hybrid import (
    MAX_CONV_WIDTH,
    attention_metadata,
    recurrent_layers,
    with_recurrent,
    without_kv_heads,
)
from pagoda.arch.moe import MAX_EXPERTS, correction_rules, expert_rules, with_experts
from pagoda.arch.names import Traits, linear_rules, renamed
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.recurrent import ShortConvSpec
from pagoda.arch.spec import ModelSpec, MoeSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

_NAME, _MOE_NAME = "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"
_TRAITS = Traits(qk_norm=True)
_SHORT_CONV = "layers.{layer}.short_conv."
_FEED_FORWARD = "model.layers.{layer}.feed_forward."
# What a checkpoint calls parts of names that other dense decoders share.
_CONFIG_NAMES = {
    "model.norm.": "model.embedding_norm.",
    ".input_layernorm.": ".operator_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".self_attn.o_proj.": ".self_attn.out_proj.",
    ".self_attn.q_norm.": ".self_attn.q_layernorm.",
    ".self_attn.k_norm.": ".self_attn.k_layernorm.",
    ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.",
    ".mlp.down_proj.": ".feed_forward.w2.",
}
# llama.cpp gave the last norm the name of another, and keeps it.
_GGUF_NAMES = {"output_norm.": "token_embd_norm."}


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    return _from_config({**config, "intermediate_size": _width(reader)}, _NAME)


def moe_from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    spec = _from_config(config, _MOE_NAME)
    count = reader.integer("num_experts", MAX_EXPERTS)
    experts = MoeSpec(
        count,
        reader.integer("num_experts_per_tok", count),
        reader.integer("moe_intermediate_size", MAX_WIDTH),
        "sigmoid",
        corrected=reader.flag("use_expert_bias", True),
        renormalize=reader.flag("norm_topk_prob", True),
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (_FEED_FORWARD + "gate.weight",)),
        *(correction_rules(_FEED_FORWARD + "expert_bias") if experts.corrected else ()),
        *expert_rules(experts, "single", _FEED_FORWARD, names=("w1", "w3", "w2")),
    ]
    first = reader.integer("num_dense_layers", MAX_LAYERS, 2, minimum=0)
    return with_experts(spec, experts, range(first, len(spec.layers)), rules)


def _from_config(config: Mapping[str, Any], architecture: str) -> ModelSpec:
    given = config_reader(config)
    # Lfm2Config's own defaults and names.
    reader = config_reader(
        {
            "rope_theta": 1e6,
            **config,
            "rms_norm_eps": given.number("norm_eps", 1e-5, below=1.0),
            "tie_word_embeddings": given.flag(
                "tie_embedding", given.flag("tie_word_embeddings", True)
            ),
        }
    )
    spec = spec_from_config(reader, architecture, _TRAITS)
    mixer = ShortConvSpec(
        spec.hidden_size,
        reader.integer("conv_L_cache", MAX_CONV_WIDTH, 3, minimum=2),
        reader.flag("conv_bias", False),
    )
    layer = "model.layers.{layer}.conv."
    names = tuple(layer + name for name in ("in_proj", "conv", "out_proj"))
    rules = _short_conv_rules(names, mixer.bias)
    return with_recurrent(_with_names(spec, _CONFIG_NAMES), mixer, _recurrent(reader, spec), rules)


def _width(reader: Reader) -> int:
    """The feed-forward layers' width: the number in config.json may be that of layers without
    gates, which is to be cut to two thirds and rounded up."""
    stated = "block_ff_dim" if reader.has("block_ff_dim") else "intermediate_size"
    width = reader.integer(stated, MAX_WIDTH)
    if not reader.flag("block_auto_adjust_ff_dim", True):
        return width
    unit = reader.integer("block_multiple_of", MAX_WIDTH, 256)
    factor = reader.number("block_ffn_dim_multiplier", 1.0)
    return unit * ceil(int(factor * int(2 * width / 3)) / unit)


def _recurrent(reader: Reader, spec: ModelSpec) -> list[bool]:
    """By `layer_types`, or in the first files by the layers that have attention."""
    if reader.has("layer_types"):
        kinds = {"full_attention": False, "conv": True}
        return recurrent_layers(reader, len(spec.layers), kinds)
    attention = reader.listed("full_attn_idxs")
    named = reader.has("full_attn_idxs")
    return [named and index not in attention for index in range(len(spec.layers))]


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "lfm2.", _NAME)


def moe_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "lfm2moe."
    spec = _from_gguf(metadata, tensor_names, prefix, _MOE_NAME)
    # llama.cpp makes weights sum to 1 whatever the file says.
    reader = Reader({**metadata, prefix + "expert_weights_norm": True}, "GGUF metadata", prefix)
    return with_gguf_experts(spec, reader, SIGMOID)


def _from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str, architecture: str
) -> ModelSpec:
    given = Reader(metadata, "GGUF metadata", prefix)
    for name, meant in (("attention.causal", True), ("attention.sliding_window", 0)):
        if given.raw(name) not in (None, meant):
            raise UnsupportedModelError(
                f"GGUF metadata: {prefix}{name} is {given.raw(name)!r}, which LFM2's models that "
                "write text do not have; they are supported."
            )
    reader = Reader(attention_metadata(metadata, prefix), "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    spec = spec_from_gguf(reader, tokenizer, architecture, _TRAITS, tensor_names)
    width = reader.integer("shortconv.l_cache", MAX_CONV_WIDTH, minimum=2)
    layer = "blk.{layer}.shortconv."
    names = tuple(layer + name for name in ("in_proj", "conv", "out_proj"))
    return with_recurrent(
        _with_names(spec, _GGUF_NAMES),
        ShortConvSpec(spec.hidden_size, width),
        without_kv_heads(metadata, prefix),
        _short_conv_rules(names, bias=False),
    )


def _short_conv_rules(names: tuple[str, ...], bias: bool) -> list[WeightRule]:
    """`names` of the input layer, the convolution and the output layer."""
    places = ("input", "conv", "output")
    return [
        rule
        for place, name in zip(places, names, strict=True)
        for rule in linear_rules(_SHORT_CONV + place, (name,), bias)
    ]


def _with_names(spec: ModelSpec, names: Mapping[str, str]) -> ModelSpec:
    return replace(spec, weights=renamed(spec.weights, names))
