"""InternVL 3 and 3.5 (arXiv 2504.10479, 2508.18265) in the format of transformers: Qwen2 or Qwen3,
dense or with experts, behind InternViT, which reads a picture in tiles of one size."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.families import qwen2, qwen3, qwen3_moe
from pagoda.arch.families.internvl_vision import NAME, vision_from_config
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

_LANGUAGE_MODELS: dict[str, Callable[[Mapping[str, Any]], ModelSpec]] = {
    "qwen2": qwen2.from_config, "qwen3": qwen3.from_config, "qwen3_moe": qwen3_moe.from_config,
}  # fmt: skip
_LANGUAGE_MODEL = "language_model."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    outer, reader = Reader(config, "config.json"), config_reader(config)
    kind = reader.text("model_type")
    if kind not in _LANGUAGE_MODELS:
        raise UnsupportedModelError(
            f"config.json: text_config.model_type is {kind!r}, which is not supported in InternVL; "
            f"known are {', '.join(_LANGUAGE_MODELS)}."
        )
    # The outer part says of other things that they are tied.
    inner = config.get("text_config")
    text = _LANGUAGE_MODELS[kind]({**config, "tie_word_embeddings": False, "text_config": inner})
    return replace(
        text,
        architecture=NAME,
        weights=tuple(map(_inside, text.weights)),
        ignored_weights=tuple(_LANGUAGE_MODEL + name for name in text.ignored_weights),
        vision=vision_from_config(outer),
    )


def _inside(rule: WeightRule) -> WeightRule:
    """The language model lies within the checkpoint."""
    return replace(rule, sources=tuple(_LANGUAGE_MODEL + source for source in rule.sources))
