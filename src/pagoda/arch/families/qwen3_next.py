"""Qwen3-Next (80B-A3B): Qwen3.5's layers as a mixture of experts, whose delta nets' inputs lie key
head by key head."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.draft_head import with_config_draft_head, with_gguf_draft_head
from pagoda.arch.families.qwen3_5 import (
    hybrid_from_config,
    hybrid_from_gguf,
    input_rules,
    qkv_pieces,
)
from pagoda.arch.families.qwen3_5_moe import config_experts, gguf_experts
from pagoda.arch.families.qwen3_moe import sparse_layers
from pagoda.arch.moe import gguf_rules, single_rules, with_experts
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.arch.spec import ModelSpec, RowPiece, WeightRule

_ARCHITECTURE = "Qwen3NextForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader(config)
    experts = config_experts(reader, renormalize=reader.flag("norm_topk_prob", True))
    spec = hybrid_from_config(config, _ARCHITECTURE, "model.", _config_inputs)
    spec = with_experts(spec, experts, sparse_layers(reader), single_rules(experts))
    return with_config_draft_head(spec, config)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "qwen3next."
    experts = gguf_experts(Reader(metadata, "GGUF metadata", prefix))
    legacy = "blk.0.ssm_in.weight" in tensor_names
    inputs = _legacy_gguf_inputs if legacy else _gguf_inputs
    spec = hybrid_from_gguf(metadata, tensor_names, prefix, _ARCHITECTURE, inputs, tiled=False)
    spec = with_experts(spec, experts, range(len(spec.layers)), gguf_rules(experts))
    return with_gguf_draft_head(spec, Reader(metadata, "GGUF metadata", prefix), tensor_names)


def _config_inputs(prefix: str, spec: DeltaNetSpec) -> list[WeightRule]:
    sources = (prefix + "in_proj_qkvz",) * 4 + (prefix + "in_proj_ba",) * 2
    return input_rules(sources, (*_qkvz_pieces(spec), *_ba_pieces(spec)))


def _gguf_inputs(prefix: str, spec: DeltaNetSpec) -> list[WeightRule]:
    sources = (prefix + "attn_qkv",) * 3 + (prefix + "attn_gate",) + (prefix + "ssm_ba",) * 2
    return input_rules(sources, (*qkv_pieces(spec), None, *_ba_pieces(spec)))


def _legacy_gguf_inputs(prefix: str, spec: DeltaNetSpec) -> list[WeightRule]:
    sources = (prefix + "ssm_in",) * 4 + (prefix + "ssm_ba",) * 2
    return input_rules(sources, (*_qkvz_pieces(spec), *_ba_pieces(spec)))


def _qkvz_pieces(spec: DeltaNetSpec) -> tuple[RowPiece, ...]:
    """Each key head has its q and k, then v and z of the value heads that share it."""
    key = spec.key_head_dim
    values = spec.num_value_heads // spec.num_key_heads * spec.value_head_dim
    rows = 2 * (key + values)
    starts = (0, key, 2 * key, 2 * key + values)
    return tuple(
        RowPiece(rows, first, count)
        for first, count in zip(starts, (key, key, values, values), strict=True)
    )


def _ba_pieces(spec: DeltaNetSpec) -> tuple[RowPiece, RowPiece]:
    shared = spec.num_value_heads // spec.num_key_heads
    return RowPiece(2 * shared, 0, shared), RowPiece(2 * shared, shared, shared)
