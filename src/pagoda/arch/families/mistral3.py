"""Mistral Small 3.1 and later, Magistral, Devstral 2 and Ministral 3: Llama behind Pixtral's vision
transformer (arXiv 2410.07073). Ministral 3 scales queries by their position (arXiv 2501.19399)."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.llama import every_window
from pagoda.arch.families.pixtral import NAME, vision_from_config, with_gguf_tower
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import MAX_CONTEXT, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, ModelSpec, QueryScaling
from pagoda.base.errors import UnsupportedModelError

_LANGUAGE_MODEL = "language_model."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # The outer part says of other things that they are tied.
    reader = config_reader({**config, "tie_word_embeddings": False})
    kind = reader.text("model_type")
    if kind not in ("mistral", "ministral3"):
        raise UnsupportedModelError(
            f"config.json: text_config.model_type is {kind!r}, which is not supported yet; known "
            "are the language models of Mistral Small 3 (mistral) and Ministral 3 (ministral3)."
        )
    spec = _text_from_config(reader, NAME)
    head = _LANGUAGE_MODEL + "lm_head.weight"
    tied = spec.tie_word_embeddings
    return replace(
        spec,
        weights=config_rules(Traits(), tied, _LANGUAGE_MODEL + "model.", head),
        ignored_weights=(*spec.ignored_weights, *((head,) if tied else ())),
        vision=None
        if config.get("vision_config") is None
        else vision_from_config(config, spec.norm_eps),
    )


def ministral_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _text_from_config(config_reader(config), "Ministral3ForCausalLM")


def _text_from_config(reader: Reader, architecture: str) -> ModelSpec:
    spec = spec_from_config(reader, architecture, Traits(), every_window(reader))
    rope = reader.section("rope_parameters")
    if rope is None or not rope.has("llama_4_scaling_beta"):
        return spec
    original = rope.integer("original_max_position_embeddings", MAX_CONTEXT)
    return _with_scaling(spec, QueryScaling(rope.number("llama_4_scaling_beta"), original))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "mistral3.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    spec = spec_from_gguf(reader, tokenizer, NAME, Traits(), tensor_names, interleaved=True)
    spec = with_gguf_tower(spec, metadata, tensor_names)
    if not reader.raw("attention.temperature_scale"):
        return spec
    original = reader.integer("rope.scaling.original_context_length", MAX_CONTEXT)
    return _with_scaling(spec, QueryScaling(reader.number("attention.temperature_scale"), original))


def _with_scaling(spec: ModelSpec, scaling: QueryScaling) -> ModelSpec:
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, query_scaling=scaling))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    return replace(spec, layers=layers)
