"""gpt-oss 20b and 120b (arXiv 2508.10925): experts with clamped SwiGLU, attention with sinks and
in every second layer a short window."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules, with_experts
from pagoda.arch.names import Traits, linear_rules, with_sources
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import (
    AttentionSpec,
    ClampedSwiglu,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    WeightRule,
)

_NAME = "GptOssForCausalLM"
_LAYER = "layers.{layer}."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader({"head_dim": 64, "use_sliding_window": True, **config})
    bias = reader.flag("attention_bias", True)
    traits = Traits(qkv_bias=bias, output_bias=bias)
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    if reader.has("layer_types"):
        windows = layer_windows(reader)
    else:
        windows = _alternating(reader.integer("sliding_window", MAX_CONTEXT, 128), num_layers)
    spec = spec_from_config(reader, _NAME, traits, windows)
    count = reader.integer("num_local_experts", MAX_EXPERTS)
    top_k = "experts_per_token" if reader.has("experts_per_token") else "num_experts_per_tok"
    experts = _experts(
        count,
        reader.integer(top_k, count),
        reader.integer("intermediate_size", MAX_WIDTH),
        ClampedSwiglu(reader.number("swiglu_alpha", 1.702), reader.number("swiglu_limit", 7.0)),
    )
    spec = with_experts(spec, experts, range(num_layers), _config_rules(experts))
    return _with_sinks(spec, "model.layers.{layer}.self_attn.sinks")


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "gpt-oss.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    windows = _alternating(reader.integer("attention.sliding_window", MAX_CONTEXT), num_layers)
    traits = Traits(qkv_bias=True, output_bias=True)
    spec = spec_from_gguf(reader, tokenizer, _NAME, traits, tensor_names, windows=windows)
    count = reader.integer("expert_count", MAX_EXPERTS)
    experts = _experts(
        count,
        reader.integer("expert_used_count", count),
        reader.integer("expert_feed_forward_length", MAX_WIDTH),
        ClampedSwiglu(),
    )
    spec = with_experts(spec, experts, range(num_layers), gguf_rules(experts))
    norm = {"mlp_norm.weight": "blk.{layer}.post_attention_norm.weight"}
    weights = with_sources(spec.weights, norm)
    layers = tuple(_exact_yarn(layer) for layer in spec.layers)
    spec = replace(spec, weights=weights, layers=layers)
    return _with_sinks(spec, "blk.{layer}.attn_sinks.weight")


def _alternating(window: int, num_layers: int) -> tuple[int | None, ...]:
    return tuple(window if layer % 2 == 0 else None for layer in range(num_layers))


def _experts(count: int, top_k: int, size: int, clamped: ClampedSwiglu) -> MoeSpec:
    return MoeSpec(count, top_k, size, "topk_softmax", clamped=clamped, bias=True)


def _config_rules(experts: MoeSpec) -> list[WeightRule]:
    """Names as the hub's checkpoints have them; gate and up lie row by row in turn."""
    mlp = "model.layers.{layer}.mlp."
    router = linear_rules(_LAYER + "mlp.router", (mlp + "router",))
    return [*router, *expert_rules(experts, "stacked", mlp, interleaved=True)]


def _with_sinks(spec: ModelSpec, source: str) -> ModelSpec:
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, sinks=True))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    sinks = WeightRule(_LAYER + "attention.sinks.weight", (source,))
    return replace(spec, layers=layers, weights=(*spec.weights, sinks))


def _exact_yarn(layer: LayerSpec) -> LayerSpec:
    """A GGUF cannot say that this model's ramp ends between dimensions (`truncate`: false in its
    config.json)."""
    mixer = layer.mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    if mixer.rope.scaling is None:
        return layer
    scaling = replace(mixer.rope.scaling, truncate=False)
    return replace(layer, mixer=replace(mixer, rope=replace(mixer.rope, scaling=scaling)))
