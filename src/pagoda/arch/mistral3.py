"""Mistral Small 3.1 and later, Magistral and Devstral 2 of that size: Llama beside a vision tower,
which is left out; they read text only here."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.llama import every_window
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError

_LANGUAGE_MODEL = "language_model."
_VISION = ("vision_tower.*", "multi_modal_projector.*")
_NAME = "Mistral3ForConditionalGeneration"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # The outer part says of other things that they are tied.
    reader = config_reader({**config, "tie_word_embeddings": False})
    kind = reader.text("model_type")
    if kind != "mistral":
        raise _refusal(f"config.json: text_config.model_type is {kind!r}")
    spec = spec_from_config(reader, _NAME, Traits(), every_window(reader))
    head = _LANGUAGE_MODEL + "lm_head.weight"
    tied = spec.tie_word_embeddings
    return replace(
        spec,
        weights=config_rules(Traits(), tied, _LANGUAGE_MODEL + "model.", head),
        ignored_weights=(*spec.ignored_weights, *_VISION, *((head,) if tied else ())),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "mistral3.")
    if reader.has("attention.temperature_scale"):
        raise _refusal("GGUF metadata: there is mistral3.attention.temperature_scale")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    return spec_from_gguf(reader, tokenizer, _NAME, Traits(), tensor_names, interleaved=True)


def _refusal(found: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{found}. That is Ministral 3 or Mistral 4, which are not supported yet; known is the "
        "language model of Mistral Small 3.1 and 3.2."
    )
