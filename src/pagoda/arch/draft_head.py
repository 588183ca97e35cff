"""Draft heads of Qwen3-Next, 3.5 and 3.6, of DeepSeek V3 and of GLM-4.5 and 4.6 (MTP), as
transformers' checkpoints and GGUF files have them.

Facts: `mtp.*` tensors and config.json of Qwen/Qwen3.5-27B, vLLM's qwen3_next_mtp.py,
qwen3_5_mtp.py, deepseek_mtp.py and glm4_moe_mtp.py, llama.cpp's src/models/qwen35.cpp and
glm4-moe.cpp.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from pagoda.arch.read import MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, DraftHeadSpec, ModelSpec, WeightRule

_PARAM = "draft_head."
_NORMS = ("embedding_norm", "hidden_norm", "norm")


def with_config_draft_head(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """`spec` with the head that config.json tells of; Qwen3-Next has one and does not tell."""
    reader = config_reader(config)
    if reader.integer("mtp_num_hidden_layers", MAX_LAYERS, 1, minimum=0) != 1:
        return spec
    sources = {
        "fc": "mtp.fc.weight",
        "embedding_norm": "mtp.pre_fc_norm_embedding.weight",
        "hidden_norm": "mtp.pre_fc_norm_hidden.weight",
        "norm": "mtp.norm.weight",
    }
    if reader.flag("mtp_use_dedicated_embeddings", False):
        sources["embed"] = "mtp.embed_tokens.weight"
    return _with_head(spec, sources, "mtp.layers.0.", "mtp.*", norm="1 + x")


def without_gguf_draft_heads(
    metadata: Mapping[str, Any], prefix: str
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A GGUF's metadata with its draft heads left out of the number of blocks, and patterns of
    their tensors."""
    reader = Reader(metadata, "GGUF metadata", prefix)
    heads = reader.integer("nextn_predict_layers", MAX_LAYERS, 0, minimum=0)
    blocks = reader.integer("block_count", MAX_LAYERS, minimum=heads + 1)
    layers = blocks - heads
    patterns = tuple(f"blk.{block}.*" for block in range(layers, blocks))
    return {**metadata, prefix + "block_count": layers}, patterns


def with_gguf_draft_head(
    spec: ModelSpec, reader: Reader, tensor_names: Collection[str]
) -> ModelSpec:
    """`spec` with the head in the block behind its layers."""
    if reader.integer("nextn_predict_layers", MAX_LAYERS, 0, minimum=0) != 1:
        return spec
    block = f"blk.{len(spec.layers)}."
    sources = {
        "fc": block + "nextn.eh_proj.weight",
        "embedding_norm": block + "nextn.enorm.weight",
        "hidden_norm": block + "nextn.hnorm.weight",
        "norm": block + "nextn.shared_head_norm.weight",
    }
    if tensor_names and sources["norm"] not in tensor_names:
        sources["norm"] = "output_norm.weight"  # the model's own
    for name, own in (("embed", "embed_tokens"), ("head", "shared_head_head")):
        if f"{block}nextn.{own}.weight" in tensor_names:
            sources[name] = f"{block}nextn.{own}.weight"
    return _with_head(spec, sources, block, block + "*", norm="x")


def with_nextn_draft_head(spec: ModelSpec, reader: Reader) -> ModelSpec:
    """`spec` with the head that the layer behind its own is, as DeepSeek's checkpoints name it."""
    count = reader.integer("num_nextn_predict_layers", MAX_LAYERS, 0, minimum=0)
    layers = range(len(spec.layers), len(spec.layers) + count)
    patterns = tuple(f"model.layers.{layer}.*" for layer in layers)
    spec = replace(spec, ignored_weights=(*spec.ignored_weights, *patterns))
    if count != 1:
        return spec
    prefix = f"model.layers.{layers[0]}."
    sources = {
        "fc": prefix + "eh_proj.weight",
        "embedding_norm": prefix + "enorm.weight",
        "hidden_norm": prefix + "hnorm.weight",
        "norm": prefix + "shared_head.norm.weight",
        "embed": prefix + "embed_tokens.weight",
        "head": prefix + "shared_head.head.weight",
    }
    return _with_head(spec, sources, prefix, *patterns, norm="x")


def draft_head_as_found(spec: ModelSpec, tensor_names: Collection[str]) -> ModelSpec:
    """Without the head where a checkpoint has none of its tensors, as many a fine-tuned one."""
    head = spec.draft_head
    if head is None or not tensor_names:
        return spec
    found = any(fnmatchcase(name, kind) for kind in head.tensors for name in tensor_names)
    return spec if found else replace(spec, draft_head=None)


def _with_head(
    spec: ModelSpec,
    sources: Mapping[str, str],
    layer_prefix: str,
    tensors: str,
    *,
    norm: Literal["x", "1 + x"],
) -> ModelSpec:
    """Its layer is like the model's last one with attention, down to the names in the checkpoint
    behind `layer_prefix`."""
    attentive = [i for i, x in enumerate(spec.layers) if isinstance(x.mixer, AttentionSpec)]
    if not attentive:
        return spec
    index = attentive[-1]
    rules = [
        replace(
            rule,
            param=rule.param.replace("layers.{layer}.", _PARAM + "layer."),
            sources=tuple(layer_prefix + x.partition("{layer}.")[2] for x in rule.sources),
            layers=None,
        )
        for rule in spec.weights
        if "{layer}" in rule.param and (rule.layers is None or index in rule.layers)
    ]
    for half in ("embedding_fc", "hidden_fc"):
        rules.append(WeightRule(f"{_PARAM}{half}.weight", (sources["fc"],)))
    for name in _NORMS:
        rules.append(WeightRule(f"{_PARAM}{name}.weight", (sources[name],), value=norm))
    for name in ("embed", "head"):
        if name in sources:
            rules.append(WeightRule(f"{_PARAM}{name}.weight", (sources[name],)))
    head = DraftHeadSpec(
        spec.layers[index],
        tuple(rules),
        (tensors,),
        own_embedding="embed" in sources,
        own_output="head" in sources,
    )
    return replace(spec, draft_head=head)
