"""GLM-4.5, 4.5-Air and 4.6 (arXiv 2508.06471): mixtures of experts behind one to three dense
layers. Experts are chosen by a sigmoid and a correction, one is shared, and half of each head is
rotated."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.draft_head import (
    with_gguf_draft_head,
    with_nextn_draft_head,
    without_gguf_draft_heads,
)
from pagoda.arch.grouped_moe import SIGMOID, first_sparse, with_config_experts, with_gguf_experts
from pagoda.arch.names import Traits, with_sources
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError

_NAME = "Glm4MoeForCausalLM"
_PREFIX = "glm4moe."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As Glm4MoeConfig.
    reader = config_reader({"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, **config})
    traits = Traits(
        qkv_bias=reader.flag("attention_bias", False), qk_norm=reader.flag("use_qk_norm", False)
    )
    spec = spec_from_config(reader, _NAME, traits)
    layers = range(first_sparse(reader, 1), len(spec.layers))
    return with_nextn_draft_head(with_config_experts(spec, reader, layers), reader)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    metadata, heads_of = without_gguf_draft_heads(metadata, _PREFIX)
    reader = Reader(metadata, "GGUF metadata", _PREFIX)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
    )
    spec = spec_from_gguf(reader, tokenizer, _NAME, traits, tensor_names)
    norm = {"mlp_norm.weight": "blk.{layer}.post_attention_norm.weight"}
    spec = replace(
        spec,
        weights=with_sources(spec.weights, norm),
        ignored_weights=(*spec.ignored_weights, *heads_of),
    )
    if reader.integer("expert_gating_func", 16, SIGMOID) != SIGMOID:
        raise UnsupportedModelError(
            "The GGUF's router is not a sigmoid (expert_gating_func); GLM-4.5 and 4.6 have one."
        )
    spec = with_gguf_experts(spec, reader, SIGMOID)
    return with_gguf_draft_head(spec, reader, tensor_names)
