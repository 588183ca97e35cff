"""Bamba (huggingface.co/blog/bamba): Llama with Mamba-2 in place of attention in most layers, and
with half of each head rotated in the others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config
from pagoda.arch.hybrid import with_recurrent
from pagoda.arch.mamba2 import mamba2_from_config, mamba2_rules
from pagoda.arch.names import Traits, renamed
from pagoda.arch.read import config_reader
from pagoda.arch.spec import ModelSpec

# What a checkpoint calls parts of names that other dense decoders share.
_NAMES = {
    "model.norm.": "model.final_layernorm.",
    ".post_attention_layernorm.": ".pre_ff_layernorm.",
    ".mlp.": ".feed_forward.",
}


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader({"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, **config})
    bias = reader.flag("attention_bias", False)
    traits = Traits(bias, bias, reader.flag("mlp_bias", False))
    spec = spec_from_config(reader, "BambaForCausalLM", traits)
    attention = reader.listed("attn_layer_indices")
    mixer = mamba2_from_config(reader, spec.hidden_size, spec.norm_eps)
    return with_recurrent(
        replace(spec, weights=renamed(spec.weights, _NAMES)),
        mixer,
        [index not in attention for index in range(len(spec.layers))],
        mamba2_rules(mixer, "model.layers.{layer}.mamba."),
    )
