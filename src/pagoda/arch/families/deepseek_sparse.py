"""DeepSeek V3.2 (arXiv 2512.02556) and GLM-5 to 5.3 (arXiv 2602.15763): DeepSeek V3, whose
attention sees the 2048 tokens that an indexer chooses. From GLM-5.2 on most layers see what the one
before them chose (arXiv 2603.12201)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagoda.arch.families.deepseek import (
    latent_from_config,
    latent_from_gguf,
    with_gguf_parts,
    with_sigmoids,
)
from pagoda.arch.latent import IndexerSpec
from pagoda.arch.names import LATENT_CONFIG, LATENT_GGUF, LatentNames, indexer_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_HEADS, MAX_WIDTH, Reader
from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import UnsupportedModelError

_DEEPSEEK, _GLM = "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _DEEPSEEK, pairs=False)


def glm_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config({"rms_norm_eps": 1e-5, **config}, _GLM, pairs=True)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "deepseek32.", _DEEPSEEK, pairs=False)


def glm_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "glm-dsa.", _GLM, pairs=True)


def _from_config(config: Mapping[str, Any], architecture: str, *, pairs: bool) -> ModelSpec:
    """`pairs`: whether rotated rows of an indexer lie side by side."""
    spec, reader = latent_from_config(config, architecture, sparse=True)
    indexer = IndexerSpec(
        reader.integer("index_n_heads", MAX_HEADS),
        reader.integer("index_head_dim", MAX_WIDTH),
        reader.integer("index_topk", MAX_CONTEXT),
    )
    own = _own_of_config(reader, len(spec.layers))
    spec = _with_indexers(spec, indexer, own, LATENT_CONFIG, "model.layers.{}.self_attn.indexer.*",
                          pairs=pairs)  # fmt: skip
    return _with_known_head(with_sigmoids(spec, reader, first=3))


def _from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    prefix: str,
    architecture: str,
    *,
    pairs: bool,
) -> ModelSpec:
    spec, reader = latent_from_gguf(metadata, tensor_names, prefix, architecture)
    indexer = IndexerSpec(
        reader.integer("attention.indexer.head_count", MAX_HEADS),
        reader.integer("attention.indexer.key_length", MAX_WIDTH),
        reader.integer("attention.indexer.top_k", MAX_CONTEXT),
    )
    own = _own_of_gguf(reader, len(spec.layers), architecture)
    spec = _with_indexers(spec, indexer, own, LATENT_GGUF, "blk.{}.indexer.*", pairs=pairs)
    return _with_known_head(with_gguf_parts(spec, reader, tensor_names))


def _with_known_head(spec: ModelSpec) -> ModelSpec:
    """Without a draft head where it would be like a layer that has no indexer."""
    mixer = spec.layers[-1].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.latent is not None
    indexer = mixer.latent.indexer
    return spec if indexer is not None and indexer.own else replace(spec, draft_head=None)


def _own_of_config(reader: Reader, layers: int) -> list[bool]:
    """Which layers have an indexer: listed, or as a pattern of letters, or every so many."""
    kinds = [str(kind) for kind in reader.listed("indexer_types")]
    if not kinds and reader.raw("index_topk_pattern") is not None:
        pattern = reader.raw("index_topk_pattern")
        kinds = [{"F": "full", "S": "shared"}.get(str(kind), str(kind)) for kind in pattern]
    if not kinds:
        period = max(1, reader.integer("index_topk_freq", layers, 1, minimum=0))
        offset = reader.integer("index_skip_topk_offset", layers, 2, minimum=0)
        return [max(0, i - offset + 1) % period == 0 for i in range(layers)]
    if len(kinds) != layers or set(kinds) - {"full", "shared"} or kinds[0] != "full":
        raise reader.error(
            "indexer_types", f"is {kinds}; it must be 'full' or 'shared' for each of {layers} "
            "layers, the first one 'full'"
        )  # fmt: skip
    return [kind == "full" for kind in kinds]


def _own_of_gguf(reader: Reader, layers: int, architecture: str) -> list[bool]:
    """As above. Files of GLM-5.2 and 5.3 that do not say it are known by their context of a million
    tokens, as llama.cpp knows them (src/models/glm-dsa.cpp)."""
    kinds = list(reader.listed("attention.indexer.types"))
    if kinds:
        return [bool(kind) for kind in kinds[:layers]]
    sharing = architecture == _GLM and reader.integer("context_length", MAX_CONTEXT) >= 1 << 20
    return [not sharing or i < 2 or (i - 2) % 4 == 0 for i in range(layers)]


def _with_indexers(
    spec: ModelSpec,
    indexer: IndexerSpec,
    own: Sequence[bool],
    names: LatentNames,
    tensors: str,
    *,
    pairs: bool,
) -> ModelSpec:
    """`tensors`: a pattern of those of a layer's indexer."""
    layers = []
    for layer, has_own in zip(spec.layers, own, strict=True):
        mixer = layer.mixer
        assert isinstance(mixer, AttentionSpec) and mixer.latent is not None
        latent = replace(mixer.latent, indexer=replace(indexer, own=has_own))
        if latent.query_rank is None or latent.rope_dim > indexer.head_dim:
            raise UnsupportedModelError(
                f"Queries have {'a' if latent.query_rank else 'no'} rank, and an indexer's keys "
                f"{indexer.head_dim} numbers, of which {latent.rope_dim} are rotated. DeepSeek "
                "V3.2 and GLM-5 have a rank and at least as many numbers as are rotated."
            )
        mixer = replace(mixer, latent=latent, head_dim=latent.cached_dim)
        layers.append(replace(layer, mixer=mixer))
    indexed = tuple(i for i, has_own in enumerate(own) if has_own)
    rules = indexer_rules(names, latent, indexed, pairs=pairs)
    # Some files have an indexer in each layer, whoever uses it.
    unused = tuple(tensors.format(i) for i, has_own in enumerate(own) if not has_own)
    return replace(
        spec,
        layers=tuple(layers),
        weights=(*spec.weights, *rules),
        ignored_weights=(*spec.ignored_weights, *unused),
    )
