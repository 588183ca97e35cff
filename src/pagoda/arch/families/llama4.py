"""Llama 4 Scout and Maverick (ai.meta.com/blog/llama-4-multimodal-intelligence): of experts, in
every or every second layer, one is chosen and one shared; three layers see their chunk of the
context, to one, unrotated, that sees all of it. A vision transformer reads pictures in tiles."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.llama4_vision import NAME, vision_from_config, with_gguf_tower
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules, shared_rules, with_experts
from pagoda.arch.names import Traits, config_rules, with_pairs_side_by_side
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import (
    AttentionSpec,
    ModelSpec,
    MoeSpec,
    QueryScaling,
    SharedExpert,
    WeightRule,
)

_NAME = "Llama4ForCausalLM"
_LANGUAGE_MODEL = "language_model."
_INTERVAL = 4
"""Every so many-th layer sees all of the context; a GGUF does not say."""
_CHUNK = 8192
# What a GGUF does not say either (llama.cpp, src/models/llama4.cpp); that Maverick's queries and
# keys are not normalized, llama.cpp knows by the number of its experts.
_GGUF_SCALING = QueryScaling(0.1, 8192, offset=1)
_MAVERICK_EXPERTS = 128


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _NAME, "model.", "lm_head.weight")


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    prefix = _LANGUAGE_MODEL + "model."
    # The outer part says of other things that they are tied.
    config = {**config, "tie_word_embeddings": False}
    spec = _from_config(config, NAME, prefix, _LANGUAGE_MODEL + "lm_head.weight")
    if config.get("vision_config") is None:
        return spec
    return replace(spec, vision=vision_from_config(config))


def _from_config(config: Mapping[str, Any], architecture: str, prefix: str, head: str) -> ModelSpec:
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, Mapping) else config
    reader = Reader(text, "config.json")
    # Llama4TextConfig's own defaults; dense layers' size has another name.
    defaults = {"rope_theta": 5e5, "rms_norm_eps": 1e-5, "head_dim": 128}
    dense = {"intermediate_size": reader.integer("intermediate_size_mlp", MAX_WIDTH)}
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    unrotated = _unrotated(reader, num_layers)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias)
    windows = _windows(reader, num_layers, unrotated)
    wide_reader = config_reader({**defaults, **text, "text_config": None, **dense})
    spec = spec_from_config(wide_reader, architecture, traits, windows, unrotated)
    scaling = None
    if reader.flag("attn_temperature_tuning", True):
        length = reader.integer("floor_scale", MAX_CONTEXT, 8192)
        scaling = QueryScaling(reader.number("attn_scale", 0.1), length, offset=1)
    experts = _experts(reader, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    rules = config_rules(traits, spec.tie_word_embeddings, prefix, head)
    # Rotary pairs lie side by side, as llama.cpp has them of other models.
    size = spec.attentions[0].head_dim
    rules = with_pairs_side_by_side(rules, size, size)
    spec = replace(spec, weights=tuple(map(_config_rule, rules)))
    spec = _with_attention(spec, scaling, normalized=reader.flag("use_qk_norm", True))
    source = prefix + "layers.{layer}.feed_forward."
    return with_experts(
        spec, experts, _sparse_layers(reader, num_layers), _expert_rules(experts, source)
    )


def _config_rule(rule: WeightRule) -> WeightRule:
    return replace(rule, sources=tuple(x.replace(".mlp.", ".feed_forward.") for x in rule.sources))


def _expert_rules(experts: MoeSpec, source: str) -> list[WeightRule]:
    return [
        WeightRule("layers.{layer}.mlp.router.weight", (source + "router.weight",)),
        *expert_rules(experts, "stacked", source),
        *shared_rules(experts, source + "shared_expert.{part}_proj"),
    ]


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "llama4.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    # 0 says that no layer has chunks, and that all are rotated.
    window = reader.integer("attention.sliding_window", MAX_CONTEXT, _CHUNK, minimum=0)
    unrotated = range(_INTERVAL - 1, num_layers, _INTERVAL) if window else ()
    chunk = _CHUNK if window else None
    spec = spec_from_gguf(
        reader,
        tokenizer,
        _NAME,
        Traits(),
        tensor_names,
        interleaved=True,
        windows=tuple(None if layer in unrotated else chunk for layer in range(num_layers)),
        unrotated=unrotated,
    )
    experts = _experts(reader, "expert_count", "expert_used_count", "expert_feed_forward_length")
    normalized = experts.num_experts != _MAVERICK_EXPERTS
    spec = _with_attention(spec, _GGUF_SCALING, normalized=normalized)
    step = reader.integer("interleave_moe_layer_step", MAX_LAYERS)
    sparse = range(step - 1, num_layers, step)
    spec = with_experts(spec, experts, sparse, gguf_rules(experts))
    return with_gguf_tower(spec, metadata, tensor_names)


def _experts(reader: Reader, count_name: str, top_k: str, size_name: str) -> MoeSpec:
    count = reader.integer(count_name, MAX_EXPERTS)
    size = reader.integer(size_name, MAX_WIDTH)
    return MoeSpec(
        num_experts=count,
        top_k=reader.integer(top_k, count),
        intermediate_size=size,
        scoring="sigmoid",
        shared=SharedExpert(size),
        weighs_inputs=True,
    )


def _with_attention(
    spec: ModelSpec, scaling: QueryScaling | None, *, normalized: bool
) -> ModelSpec:
    """Rotated layers' queries and keys are normalized, the others' queries scaled."""
    layers = []
    for layer in spec.layers:
        mixer = layer.mixer
        assert isinstance(mixer, AttentionSpec)
        rotated = mixer.rope is not None
        mixer = replace(
            mixer,
            chunked=mixer.window is not None,
            qk_unit=normalized and rotated,
            query_scaling=None if rotated else scaling,
        )
        layers.append(replace(layer, mixer=mixer))
    return replace(spec, layers=tuple(layers))


def _unrotated(reader: Reader, num_layers: int) -> list[int]:
    """By `no_rope_layers`, which has a 0 for each of them."""
    listed = reader.listed("no_rope_layers")
    if not listed:
        every = reader.integer("no_rope_layer_interval", MAX_LAYERS, _INTERVAL)
        return list(range(every - 1, num_layers, every))
    if len(listed) != num_layers or any(flag not in (0, 1) for flag in listed):
        raise reader.error("no_rope_layers", f"must list 0 or 1 for each of {num_layers} layers")
    return [layer for layer, rotated in enumerate(listed) if not rotated]


def _windows(reader: Reader, num_layers: int, unrotated: Collection[int]) -> tuple[int | None, ...]:
    chunk = reader.integer("attention_chunk_size", MAX_CONTEXT, _CHUNK)
    if not reader.has("layer_types"):
        return tuple(None if layer in unrotated else chunk for layer in range(num_layers))
    kinds = reader.texts("layer_types")
    if len(kinds) != num_layers or set(kinds) - {"full_attention", "chunked_attention"}:
        raise reader.error(
            "layer_types",
            f"must name full_attention or chunked_attention for each of {num_layers} layers",
        )
    return tuple(chunk if kind == "chunked_attention" else None for kind in kinds)


def _sparse_layers(reader: Reader, num_layers: int) -> list[int]:
    if not reader.has("moe_layers"):
        step = reader.integer("interleave_moe_layer_step", MAX_LAYERS, 1)
        return list(range(step - 1, num_layers, step))
    listed = reader.listed("moe_layers")
    if not all(type(layer) is int and 0 <= layer < num_layers for layer in listed):
        raise reader.error("moe_layers", f"must list some of {num_layers} layers, not {listed!r}")
    return list(listed)
