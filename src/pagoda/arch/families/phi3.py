"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with fused matrices, in the long
versions with LongRoPE, in Phi-4-mini rotating a part of each head."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.llama import every_window
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec

_TRAITS = Traits(fused_qkv=True, fused_gate_up=True)


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    return spec_from_config(reader, "Phi3ForCausalLM", _TRAITS, every_window(reader))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "phi3.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    # 0 stands for none.
    window = reader.integer("attention.sliding_window", MAX_CONTEXT, 0, minimum=0)
    windows = (window or None,) * reader.integer("block_count", MAX_LAYERS)
    return spec_from_gguf(
        reader, tokenizer, "Phi3ForCausalLM", _TRAITS, tensor_names, windows=windows
    )
