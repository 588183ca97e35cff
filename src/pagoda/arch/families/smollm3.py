"""SmolLM3 (huggingface.co/blog/smollm3): Llama with layers whose queries and keys are not rotated
(arXiv 2501.18795)."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec

_INTERVAL = 4
"""Every so many-th layer is not rotated; a GGUF does not say."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As SmolLM3Config: its own base of the rotary frequencies, and a tied head.
    reader = config_reader({"rope_theta": 2e6, "tie_word_embeddings": True, **config})
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, mlp_bias=reader.flag("mlp_bias", False))
    return spec_from_config(
        reader, "SmolLM3ForCausalLM", traits, layer_windows(reader), _unrotated(reader)
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "smollm3.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    unrotated = _every(_INTERVAL, reader.integer("block_count", MAX_LAYERS))
    return spec_from_gguf(
        reader,
        tokenizer,
        "SmolLM3ForCausalLM",
        Traits(),
        tensor_names,
        interleaved=True,
        unrotated=unrotated,
    )


def _unrotated(reader: Reader) -> Collection[int]:
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    if not reader.has("no_rope_layers"):
        return _every(reader.integer("no_rope_layer_interval", MAX_LAYERS, _INTERVAL), num_layers)
    # Its name misleads: 1 stands for a layer that is rotated.
    flags = reader.listed("no_rope_layers")
    if len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        raise reader.error("no_rope_layers", f"must list 0 or 1 for each of {num_layers} layers")
    return [layer for layer in range(num_layers) if flags[layer] == 0]


def _every(interval: int, num_layers: int) -> Collection[int]:
    return range(interval - 1, num_layers, interval)
