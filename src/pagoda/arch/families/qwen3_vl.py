"""Qwen3-VL, dense (arXiv 2511.21631): Qwen3 with a vision transformer in front and positions of
three coordinates."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen_vision import (
    config_sections,
    layers_with_axes,
    vision_from_config,
    vision_from_gguf,
)
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec

_NAME = "Qwen3VLForConditionalGeneration"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return dense_from_config(config, _NAME)


def dense_from_config(config: Mapping[str, Any], architecture: str) -> ModelSpec:
    reader = text_reader(config)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    spec = spec_from_config(reader, architecture, traits)
    return replace(
        spec,
        layers=layers_with_axes(spec.layers, *config_sections(reader)),
        weights=config_rules(traits, spec.tie_word_embeddings, "model.language_model."),
        vision=vision_from_config(config, spec.hidden_size),
    )


def text_reader(config: Mapping[str, Any]) -> Reader:
    text = config.get("text_config")
    text = {"head_dim": 128, **(text if isinstance(text, Mapping) else {})}
    # Of the two places the outer one counts (transformers ties the whole model's embeddings).
    if config.get("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return config_reader({**config, "text_config": text})


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "qwen3vl.")
    return dense_from_gguf(metadata, tensor_names, reader, (_NAME, "Qwen3ForCausalLM"))


def dense_from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    reader: Reader,
    architectures: tuple[str, str],
) -> ModelSpec:
    """The first of `architectures` with a vision tower (`--mmproj`), the second without: then all
    that is left is a model of text."""
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    sees = "clip.projector_type" in metadata
    name = architectures[0 if sees else 1]
    spec = spec_from_gguf(reader, tokenizer, name, Traits(qk_norm=True), tensor_names)
    if not sees:
        return spec
    return replace(
        spec,
        layers=layers_with_axes(spec.layers, reader, "rope.dimension_sections"),
        vision=vision_from_gguf(metadata, spec.hidden_size),
    )
