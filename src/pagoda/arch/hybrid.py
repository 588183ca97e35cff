"""A dense decoder's spec with recurrent mixers in place of attention in some layers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagoda.arch.read import Reader
from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import ModelSpec, WeightRule

MAX_CONV_WIDTH = 64
"""The convolution's width is a loop in the kernels and tokens of state in each slot."""
_ATTENTION = "layers.{layer}.attention."


def with_recurrent(
    spec: ModelSpec,
    mixer: RecurrentSpec,
    recurrent: Sequence[bool],
    rules: Iterable[WeightRule],
) -> ModelSpec:
    """`mixer` in those layers that are `recurrent`, whose weights `rules` say."""
    found = tuple(index for index, is_found in enumerate(recurrent) if is_found)
    rest = tuple(index for index, is_found in enumerate(recurrent) if not is_found)
    return replace(
        spec,
        layers=tuple(
            replace(layer, mixer=mixer) if is_found else layer
            for layer, is_found in zip(spec.layers, recurrent, strict=True)
        ),
        weights=(
            *(
                replace(rule, layers=rest) if rule.param.startswith(_ATTENTION) else rule
                for rule in spec.weights
            ),
            *(replace(rule, layers=found) for rule in rules),
        ),
    )


def recurrent_layers(reader: Reader, num_layers: int, kinds: Mapping[str, bool]) -> list[bool]:
    """Which layers are recurrent, as `layer_types` of config.json says by the names in `kinds`."""
    found = reader.texts("layer_types")
    if len(found) != num_layers or set(found) - set(kinds):
        known = " or ".join(kinds)
        raise reader.error("layer_types", f"must name {known} for each of {num_layers} layers")
    return [kinds[kind] for kind in found]


def attention_metadata(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`metadata` of a GGUF with KV heads in recurrent layers too, where llama.cpp writes 0."""
    name = "attention.head_count_kv"
    heads = Reader(metadata, "GGUF metadata", prefix).listed(name)
    most = max((count for count in heads if isinstance(count, int)), default=0)
    return {**metadata, prefix + name: [count or most for count in heads]}


def without_kv_heads(metadata: Mapping[str, Any], prefix: str) -> list[bool]:
    """Which layers a GGUF says have none: the recurrent ones."""
    heads = Reader(metadata, "GGUF metadata", prefix).listed("attention.head_count_kv")
    return [count == 0 for count in heads]
