"""Mistral Small 3.1 and later, Magistral, Devstral 2 and Ministral 3: Llama beside a vision tower,
which is left out; they read text only here. Ministral 3 scales queries by their position (arXiv
2501.19399)."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.llama import every_window
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import MAX_CONTEXT, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, ModelSpec, QueryScaling
from pagoda.base.errors import UnsupportedModelError

_LANGUAGE_MODEL = "language_model."
_VISION = ("vision_tower.*", "multi_modal_projector.*")
_NAME = "Mistral3ForConditionalGeneration"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # The outer part says of other things that they are tied.
    reader = config_reader({**config, "tie_word_embeddings": False})
    kind = reader.text("model_type")
    if kind not in ("mistral", "ministral3"):
        raise UnsupportedModelError(
            f"config.json: text_config.model_type is {kind!r}, which is not supported yet; known "
            "are the language models of Mistral Small 3 (mistral) and Ministral 3 (ministral3)."
        )
    spec = _text_from_config(reader, _NAME)
    head = _LANGUAGE_MODEL + "lm_head.weight"
    tied = spec.tie_word_embeddings
    return replace(
        spec,
        weights=config_rules(Traits(), tied, _LANGUAGE_MODEL + "model.", head),
        ignored_weights=(*spec.ignored_weights, *_VISION, *((head,) if tied else ())),
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
    spec = spec_from_gguf(reader, tokenizer, _NAME, Traits(), tensor_names, interleaved=True)
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
