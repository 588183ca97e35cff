"""Qwen3, dense (arXiv 2505.09388): q and k are normalized per head; no biases."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.internvl_vision import with_gguf_tower
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.names import Traits
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # Qwen3Config's head size is 128 unless given, whatever hidden_size and heads are.
    reader = config_reader({"head_dim": 128, **config})
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    return spec_from_config(reader, "Qwen3ForCausalLM", traits, layer_windows(reader))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "qwen3.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(qk_norm=True)
    spec = spec_from_gguf(reader, tokenizer, "Qwen3ForCausalLM", traits, tensor_names)
    return with_gguf_tower(spec, metadata, tensor_names)
