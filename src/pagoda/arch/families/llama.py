"""Llama 2 and 3, SmolLM2, Mistral and their many fine-tunes (arXiv 2302.13971, 2407.21783)."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, mlp_bias=reader.flag("mlp_bias", False))
    return spec_from_config(reader, "LlamaForCausalLM", traits)


def mistral_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Mistral 7B is Llama, but that version 0.1 has a sliding window (arXiv 2310.06825)."""
    reader = config_reader(config)
    return spec_from_config(reader, "MistralForCausalLM", Traits(), every_window(reader))


def every_window(reader: Reader) -> tuple[int | None, ...]:
    """`sliding_window`, if there is one, of every layer."""
    if not reader.has("sliding_window"):
        return ()
    window = reader.integer("sliding_window", MAX_CONTEXT)
    return (window,) * reader.integer("num_hidden_layers", MAX_LAYERS)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "llama.")
    if reader.integer("expert_count", 1 << 16, 0, minimum=0):
        raise UnsupportedModelError(
            "This GGUF is a mixture of experts of the Llama family (Mixtral), "
            "which is not known yet; the nearest known is dense 'llama'."
        )
    traits = Traits(
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
    )
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    # llama.cpp's LlamaModel.permute interleaves q and k rows (conversion/llama.py).
    return spec_from_gguf(
        reader, tokenizer, "LlamaForCausalLM", traits, tensor_names, interleaved=True
    )
