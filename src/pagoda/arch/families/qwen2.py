"""Qwen2 and Qwen2.5, dense (arXiv 2407.10671, 2412.15115): Llama with biases on q, k and v."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.internvl_vision import with_gguf_tower
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec

_TRAITS = Traits(qkv_bias=True)


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    return spec_from_config(reader, "Qwen2ForCausalLM", _TRAITS, layer_windows(reader))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "qwen2.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    spec = spec_from_gguf(reader, tokenizer, "Qwen2ForCausalLM", _TRAITS, tensor_names)
    return with_gguf_tower(spec, metadata, tensor_names)


def layer_windows(reader: Reader) -> tuple[int | None, ...]:
    """Each layer's sliding window: by `layer_types`, else from layer `max_window_layers` on."""
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    if not reader.flag("use_sliding_window", False) or not reader.has("sliding_window"):
        return (None,) * num_layers
    window = reader.integer("sliding_window", MAX_CONTEXT)
    if not reader.has("layer_types"):
        first = reader.integer("max_window_layers", MAX_LAYERS, 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = reader.texts("layer_types")
    if len(kinds) != num_layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise reader.error(
            "layer_types",
            f"must name full_attention or sliding_attention for each of {num_layers} layers",
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
