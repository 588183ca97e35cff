"""GLM-4 and GLM-Z1 of April 2025 (arXiv 2406.12793), dense: norms before and behind attention and
feed-forward part, and half of each head is rotated."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.names import Traits, with_pairs_side_by_side
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec, WeightRule

_NAME = "Glm4ForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As Glm4Config.
    defaults = {"head_dim": 128, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7}
    reader = config_reader({**defaults, **config})
    traits = Traits(qkv_bias=reader.flag("attention_bias", True), fused_gate_up=True)
    spec = spec_from_config(reader, _NAME, traits)
    mixer = spec.attentions[0]
    assert mixer.rope is not None
    rules = with_pairs_side_by_side(spec.weights, mixer.head_dim, mixer.rope.rotary_dim)
    layer = "model.layers.{layer}.post_"
    return _sandwiched(replace(spec, weights=rules), layer + "self_attn_layernorm",
                       layer + "mlp_layernorm")  # fmt: skip


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "glm4.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(qkv_bias="blk.0.attn_q.bias" in tensor_names, fused_gate_up=True)
    spec = spec_from_gguf(reader, tokenizer, _NAME, traits, tensor_names, interleaved=True)
    return _sandwiched(spec, "blk.{layer}.post_attention_norm", "blk.{layer}.post_ffw_norm")


def _sandwiched(spec: ModelSpec, attention: str, feed_forward: str) -> ModelSpec:
    """With norms of these names behind both parts of a layer, too."""
    norms = {"attention_result_norm": attention, "result_norm": feed_forward}
    rules = [
        WeightRule(f"layers.{{layer}}.{name}.weight", (source + ".weight",))
        for name, source in norms.items()
    ]
    layers = tuple(replace(layer, sandwiched=True) for layer in spec.layers)
    return replace(spec, layers=layers, weights=(*spec.weights, *rules))
