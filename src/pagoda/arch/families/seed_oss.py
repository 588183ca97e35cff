"""Seed-OSS (36B, huggingface.co/ByteDance-Seed): Llama with biases on q, k and v."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.names import Traits, with_sources
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec

_NAME = "SeedOssForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As SeedOssConfig: its own size of heads.
    reader = config_reader({"head_dim": 128, **config})
    traits = Traits(
        qkv_bias=reader.flag("attention_bias", True),
        output_bias=reader.flag("attention_out_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
    return spec_from_config(reader, _NAME, traits)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "seed_oss.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(qkv_bias="blk.0.attn_q.bias" in tensor_names)
    spec = spec_from_gguf(reader, tokenizer, _NAME, traits, tensor_names)
    # llama.cpp calls the norm in front of the feed-forward part by another name here.
    norm = {"mlp_norm.weight": "blk.{layer}.post_attention_norm.weight"}
    return replace(spec, weights=with_sources(spec.weights, norm))
