"""Gemma 3n (E2B, E4B): a token has four hidden states, of which layers compute one and guess the
others; layers have inputs of their own, the first ones keep their largest features alone, and the
last ones borrow keys and values. Pictures are read by convolutions; sound is not read."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.gemma import (
    CONFIG_NORMS,
    GGUF_NORMS,
    LAYER,
    Ropes,
    assembled,
    config_windows,
    final_cap,
    gguf_windows,
    refuse_encoders,
    refuse_other_activations,
    with_norms,
)
from pagoda.arch.families.gemma3 import config_ropes
from pagoda.arch.families.gemma3n_vision import vision_from_config
from pagoda.arch.families.gemma_small import (
    borrowed,
    config_input_rules,
    config_inputs,
    gguf_input_rules,
    gguf_inputs,
    without_borrowed,
)
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, MlpSpec, ModelSpec, RopeSpec, RowPiece, WeightRule
from pagoda.arch.streams import AltUpSpec, LayerInputSpec
from pagoda.base.errors import UnsupportedModelError

_NAME, _FAMILY = "Gemma3nForCausalLM", "Gemma 3n"
_SOUND = ("model.audio_tower.*", "model.embed_audio.*")
_PICTURES = ("model.vision_tower.*", "model.embed_vision.*")
_PERIOD, _SHARED, _LOCAL_THETA = 5, 15, 1e4
# The sparse layers of a model that says nothing of them.
_SPARSE, _SPARSITY = 10, 0.95
_STREAMS, _MAX_STREAMS = 4, 8
# llama.cpp's, which a GGUF does not say.
_LAUREL_RANK = 64
# What a published config.json leaves to Gemma3nTextConfig.
_DEFAULTS = {
    "tie_word_embeddings": True, "final_logit_softcapping": 30.0, "num_kv_shared_layers": _SHARED,
    "hidden_size_per_layer_input": 256, "bos_token_id": 2,
}  # fmt: skip
_CONFIG_LAYER = {
    "altup.router": "altup.modality_router.weight",
    "altup.router_norm": "altup.router_norm.weight",
    "altup.predict": "altup.prediction_coefs.weight",
    "altup.correct": "altup.correction_coefs.weight",
    "altup.scale": "altup.correct_output_scale",
    "laurel.down": "laurel.linear_left.weight",
    "laurel.up": "laurel.linear_right.weight",
    "laurel.norm": "laurel.post_laurel_norm.weight",
}
_GGUF_LAYER = {
    "altup.router": "altup_router.weight",
    "altup.router_norm": "altup_router_norm.weight",
    "altup.predict": "altup_predict_coef.weight",
    "altup.correct": "altup_correct_coef.weight",
    "altup.scale": "altup_correct_scale.weight",
    "laurel.down": "laurel_l.weight",
    "laurel.up": "laurel_r.weight",
    "laurel.norm": "laurel_post_norm.weight",
}
# What makes streams of an embedding, and of streams one hidden state.
_CONFIG_ENDS = {"expand": "altup_projections", "join": "altup_unembed_projections"}
_GGUF_ENDS = {"expand": "altup_proj", "join": "altup_unembd_proj"}


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, "model.")


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a checkpoint with towers, of which that for sound is left out."""
    spec = _from_config(config, "model.language_model.")
    ignored = (*spec.ignored_weights, *_SOUND)
    if config.get("vision_config") is None:
        return replace(spec, ignored_weights=(*ignored, *_PICTURES))
    return replace(spec, ignored_weights=ignored, vision=vision_from_config(config))


def _from_config(config: Mapping[str, Any], prefix: str) -> ModelSpec:
    reader = config_reader({**_DEFAULTS, **config, "hidden_act": None})
    refuse_other_activations(reader, _NAME)
    refuse_encoders(reader, _FAMILY)
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    windows = config_windows(reader, num_layers, _PERIOD)
    spec = spec_from_config(reader, _NAME, traits, windows)
    spec = replace(spec, max_position=reader.integer("max_position_embeddings", MAX_CONTEXT))
    inputs = _needed(config_inputs(reader), "hidden_size_per_layer_input")
    altup = _config_altup(reader)
    layer = prefix + "layers.{layer}."
    norms = {name: f"{layer}{source}.weight" for name, source in CONFIG_NORMS.items()}
    names = {param: layer + name for param, name in _CONFIG_LAYER.items()}
    ends = {param: prefix + name for param, name in _CONFIG_ENDS.items()}
    rules = (
        *with_norms(config_rules(traits, spec.tie_word_embeddings, prefix), norms),
        *config_input_rules(inputs, prefix),
        *_layer_rules(altup, names),
        *(
            WeightRule(f"altup.{param}.{index}.weight", (f"{name}.{index}.weight",))
            for param, name in ends.items()
            for index in range(altup.num_streams - 1)
        ),
    )
    spec = replace(spec, layer_inputs=inputs, altup=altup)
    spec = assembled(
        spec, rules, scale=1.0, ropes=config_ropes(reader, spec), logit_cap=final_cap(reader)
    )
    if not altup.scaled:  # a checkpoint has the vectors all the same
        unused = prefix + "layers.*." + _CONFIG_LAYER["altup.scale"]
        spec = replace(spec, ignored_weights=(*spec.ignored_weights, unused))
    return _finished(
        spec, borrowed(reader, "num_kv_shared_layers", windows), _config_cuts(reader, num_layers)
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "gemma3n.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    windows = gguf_windows(reader, num_layers, _PERIOD, 0)
    spec = spec_from_gguf(
        reader, tokenizer, _NAME, Traits(qk_norm=True), tensor_names, windows=windows
    )
    spec = replace(spec, max_position=reader.integer("context_length", MAX_CONTEXT))
    inputs = _needed(gguf_inputs(reader, spec.vocab_size), "embedding_length_per_layer_input")
    altup = _gguf_altup(reader)
    attention = spec.attentions[0]
    assert attention.rope is not None
    theta = reader.number("rope.freq_base_swa", _LOCAL_THETA, above=1.0)
    ropes = Ropes(attention.rope, RopeSpec(theta, attention.rope.rotary_dim))
    norms = {name: f"blk.{{layer}}.{source}.weight" for name, source in GGUF_NORMS.items()}
    names = {param: f"blk.{{layer}}.{name}" for param, name in _GGUF_LAYER.items()}
    hidden, others = spec.hidden_size, altup.num_streams - 1
    rules = (
        *with_norms(spec.weights, norms),
        *gguf_input_rules(inputs),
        *_layer_rules(altup, names),
        # Matrices of all streams lie in one tensor.
        *(
            WeightRule(f"altup.{param}.{index}.weight", (f"{name}.weight",),
                       pieces=(RowPiece(others * hidden, index * hidden, hidden),))
            for param, name in _GGUF_ENDS.items()
            for index in range(others)
        ),
    )  # fmt: skip
    spec = replace(spec, layer_inputs=inputs, altup=altup)
    spec = assembled(spec, rules, scale=1.0, ropes=ropes, logit_cap=final_cap(reader))
    return _finished(
        spec,
        borrowed(reader, "attention.shared_kv_layers", windows),
        _gguf_cuts(reader, num_layers),
    )


def _finished(spec: ModelSpec, borrows: list[int], cuts: list[float | None]) -> ModelSpec:
    """With what sets Gemma 3n's layers apart from Gemma 3's."""
    weights, unused = without_borrowed(spec.weights, borrows)
    layers = []
    for layer, back, cut in zip(spec.layers, borrows, cuts, strict=True):
        assert isinstance(layer.mixer, AttentionSpec) and isinstance(layer.mlp, MlpSpec)
        mixer = replace(layer.mixer, value_norm=True, borrows=back)
        layers.append(replace(layer, mixer=mixer, mlp=replace(layer.mlp, cut=cut)))
    return replace(
        spec,
        layers=tuple(layers),
        weights=weights,
        ignored_weights=(*spec.ignored_weights, *unused),
    )


def _layer_rules(altup: AltUpSpec, names: Mapping[str, str]) -> list[WeightRule]:
    return [
        WeightRule(f"{LAYER}{param}.weight", (source,))
        for param, source in names.items()
        if altup.scaled or param != "altup.scale"
    ]


def _config_altup(reader: Reader) -> AltUpSpec:
    _refuse_other_streams(reader, "altup_active_idx")
    return AltUpSpec(
        reader.integer("altup_num_inputs", _MAX_STREAMS, _STREAMS, minimum=2),
        reader.integer("laurel_rank", MAX_WIDTH, _LAUREL_RANK),
        reader.flag("altup_correct_scale", True),
    )


def _gguf_altup(reader: Reader) -> AltUpSpec:
    _refuse_other_streams(reader, "altup.active_idx")
    count = reader.integer("altup.num_inputs", _MAX_STREAMS, _STREAMS, minimum=2)
    return AltUpSpec(count, _LAUREL_RANK)


def _needed(inputs: LayerInputSpec | None, name: str) -> LayerInputSpec:
    if inputs is None:
        raise UnsupportedModelError(
            f"{name} is 0: Gemma 3n without inputs of each layer's own is not supported; no "
            "published one is so."
        )
    return inputs


def _refuse_other_streams(reader: Reader, name: str) -> None:
    active = reader.integer(name, _MAX_STREAMS, 0, minimum=0)
    if active:
        raise UnsupportedModelError(
            f"{name} is {active}: layers that compute another hidden state than the first are not "
            "supported; no published Gemma 3n has them."
        )


def _config_cuts(reader: Reader, num_layers: int) -> list[float | None]:
    """By the share of features that become 0, as if these were normally distributed."""
    name = "activation_sparsity_pattern"
    shares = list(reader.listed(name))
    if not reader.has(name):
        sparse = _SPARSE if num_layers > _SPARSE else 0
        shares = [_SPARSITY] * sparse + [0.0] * (num_layers - sparse)
    if len(shares) != num_layers or not all(
        type(share) in (int, float) and 0 <= share < 1 for share in shares
    ):
        raise reader.error(name, f"must list {num_layers} shares, each below 1")
    return [NormalDist().inv_cdf(share) if share else None for share in shares]


def _gguf_cuts(reader: Reader, num_layers: int) -> list[float | None]:
    """The same as numbers of standard deviations, of which minus infinity cuts nothing."""
    name = "activation_sparsity_scale"
    cuts = reader.listed(name)
    if len(cuts) != num_layers or not all(type(cut) is float and cut < math.inf for cut in cuts):
        raise reader.error(name, f"must list {num_layers} numbers")
    return [None if cut == -math.inf else cut for cut in cuts]
