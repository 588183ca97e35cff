"""Gemma 3 (arXiv 2503.19786): five layers with a window to a global one, whose heads turn more
slowly; the larger models have a vision transformer."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.gemma import (
    Ropes,
    assembled,
    config_norms,
    config_windows,
    final_cap,
    gguf_norms,
    gguf_windows,
    refuse_encoders,
    refuse_other_activations,
    rope_section,
    seeing,
)
from pagoda.arch.families.gemma3_vision import vision_from_config, vision_from_gguf
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.rope import rope_from_config
from pagoda.arch.spec import ModelSpec, RopeSpec
from pagoda.base.errors import UnsupportedModelError

_NAME, _SEEING = "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"
_LANGUAGE_MODEL = "language_model."
# SigLIP's own way to one vector of a picture.
_UNUSED = ("vision_tower.*head.*",)
_PERIOD = 6
_THETA, _LOCAL_THETA = 1e6, 1e4
# What the published config.json of a model with a tower leaves to Gemma3TextConfig.
_DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "bos_token_id": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
# By their number llama.cpp knows the layers of the 27B, whose queries have a scale of their own.
_LAYERS_OF_27B = 62


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return text_from_config(config, _NAME, "")


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a checkpoint with a tower for pictures, or of one that lost it."""
    spec = text_from_config(config, _NAME, _LANGUAGE_MODEL)
    ignored = (*spec.ignored_weights, _LANGUAGE_MODEL + "lm_head.weight", *_UNUSED)
    spec = replace(spec, ignored_weights=ignored)
    if config.get("vision_config") is None:
        return spec
    return seeing(spec, _SEEING, vision_from_config(config), wide=True)


def text_from_config(config: Mapping[str, Any], architecture: str, prefix: str) -> ModelSpec:
    """The language model; `prefix` is what its tensors' names begin with."""
    reader = config_reader({**_DEFAULTS, **config, "hidden_act": None})
    refuse_other_activations(reader, architecture)
    refuse_encoders(reader, "Gemma 3")
    if reader.has("attn_logit_softcapping"):
        raise UnsupportedModelError(
            f"config.json: attn_logit_softcapping is {reader.raw('attn_logit_softcapping')!r}. No "
            "published Gemma 3 caps attention's logits, and this program's does not; Gemma 2 does."
        )
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    windows = config_windows(reader, reader.integer("num_hidden_layers", MAX_LAYERS), _PERIOD)
    spec = spec_from_config(reader, architecture, traits, windows)
    # What it says is the context after scaling.
    spec = replace(spec, max_position=reader.integer("max_position_embeddings", MAX_CONTEXT))
    head = prefix + "lm_head.weight"
    rules = config_rules(traits, spec.tie_word_embeddings, prefix + "model.", head)
    return assembled(
        spec,
        config_norms(rules, prefix + "model."),
        scale=reader.number("query_pre_attn_scalar") ** -0.5,
        ropes=config_ropes(reader, spec),
        logit_cap=final_cap(reader),
    )


def config_ropes(reader: Reader, spec: ModelSpec) -> Ropes:
    """By transformers 5's sections, or by the fields that were before these."""
    if reader.has("rope_parameters"):
        sections = reader.raw("rope_parameters")
        for kind in ("full_attention", "sliding_attention"):
            rope_section(reader, kind)
        wide = {"rope_theta": _THETA, "rope_parameters": sections["full_attention"]}
        local = {"rope_theta": _LOCAL_THETA, "rope_parameters": sections["sliding_attention"]}
    else:
        scaling = reader.raw("rope_scaling")
        wide = {"rope_theta": reader.number("rope_theta", _THETA), "rope_scaling": scaling}
        local = {"rope_theta": reader.number("rope_local_base_freq", _LOCAL_THETA)}
    wide_rope, local_rope = (
        rope_from_config(Reader(fields, "config.json"), spec.attentions[0].head_dim,
                         spec.max_position)
        for fields in (wide, local)
    )  # fmt: skip
    return Ropes(wide_rope, local_rope)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    spec = text_from_gguf(metadata, tensor_names, "gemma3.")
    if "clip.vision.projection_dim" not in metadata:
        return spec
    vision = vision_from_gguf(metadata, tensor_names, spec.hidden_size)
    return seeing(spec, _SEEING, vision, wide=True)


def text_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str
) -> ModelSpec:
    """The language model; `prefix` is what the names of its metadata begin with."""
    reader = Reader(metadata, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    windows = gguf_windows(reader, num_layers, _PERIOD, 0)
    spec = spec_from_gguf(
        reader, tokenizer, _NAME, Traits(qk_norm=True), tensor_names, windows=windows
    )
    spec = replace(spec, max_position=reader.integer("context_length", MAX_CONTEXT))
    attention = spec.attentions[0]
    assert attention.rope is not None
    local = RopeSpec(
        reader.number("rope.freq_base_swa", _LOCAL_THETA, above=1.0), attention.rope.rotary_dim
    )
    of_27b = num_layers == _LAYERS_OF_27B
    return assembled(
        spec,
        gguf_norms(spec.weights),
        scale=(spec.hidden_size // attention.num_heads if of_27b else attention.head_dim) ** -0.5,
        ropes=Ropes(attention.rope, local),
        logit_cap=final_cap(reader),
    )
