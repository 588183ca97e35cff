"""Gemma 2 (arXiv 2408.00118): every second layer has a window, and the logits of attention are
capped."""

from collections.abc import Collection, Mapping
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
)
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec, WeightRule

_NAME = "Gemma2ForCausalLM"
_PERIOD = 2
_GGUF_WINDOW = 4096
# Gemma2Config's own where a file is silent; a null is none.
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_DEFAULTS = {**_CAPS, "query_pre_attn_scalar": 256, "tie_word_embeddings": True}
# By their number llama.cpp knows the layers of the 27B, whose queries have a scale of their own.
_LAYERS_OF_27B = 46


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # Published files have an older name of the activation beside its own.
    reader = config_reader({**_DEFAULTS, **config, "hidden_act": None})
    refuse_other_activations(reader, _NAME)
    refuse_encoders(reader, "Gemma 2")
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias)
    windows = config_windows(reader, reader.integer("num_hidden_layers", MAX_LAYERS), _PERIOD)
    spec = spec_from_config(reader, _NAME, traits, windows)
    rules = config_norms(spec.weights, "model.")
    return _capped(reader, spec, rules, reader.number("query_pre_attn_scalar"))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    # llama.cpp's where the file is silent, which are Gemma2Config's.
    named = {f"gemma2.{name}": cap for name, cap in _CAPS.items()}
    reader = Reader({**named, **metadata}, "GGUF metadata", "gemma2.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    windows = gguf_windows(reader, num_layers, _PERIOD, _GGUF_WINDOW)
    spec = spec_from_gguf(reader, tokenizer, _NAME, Traits(), tensor_names, windows=windows)
    attention, of_27b = spec.attentions[0], num_layers == _LAYERS_OF_27B
    scalar = spec.hidden_size // attention.num_heads if of_27b else attention.head_dim
    return _capped(reader, spec, gguf_norms(spec.weights), scalar)


def _capped(
    reader: Reader, spec: ModelSpec, rules: tuple[WeightRule, ...], scalar: float
) -> ModelSpec:
    """`spec`, a dense decoder's, whose queries are divided by the root of `scalar`."""
    rope, name = spec.attentions[0].rope, "attn_logit_softcapping"
    assert rope is not None
    return assembled(
        spec,
        rules,
        scale=scalar**-0.5,
        ropes=Ropes(rope, rope),
        attention_cap=reader.number(name) if reader.has(name) else None,
        logit_cap=final_cap(reader),
    )
