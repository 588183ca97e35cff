"""The vision transformer of Qwen3-VL and Qwen3.5 (arXiv 2511.21631)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import Activation, RopeSpec, VisionSpec, WeightRule
from pagoda.base.errors import CheckpointError, UnsupportedModelError

_ACTIVATIONS: dict[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_MAX_PATCH = 256
# modeling_qwen3_vl.py: constants of the architecture, not in config.json.
_ROPE_THETA = 10000.0
_NORM_EPS = 1e-6


def vision_from_config(config: Mapping[str, Any], out_size: int) -> VisionSpec:
    """`vision_config` of a config.json; `out_size` is the language model's width."""
    section = config.get("vision_config")
    if not isinstance(section, Mapping):
        raise CheckpointError(
            "config.json: vision_config is missing. The file is damaged or not meant for this "
            "program; fetch it again."
        )
    reader = Reader(section, "config.json: vision_config")
    if reader.integer("out_hidden_size", MAX_WIDTH) != out_size:
        raise reader.error("out_hidden_size", f"must be the language model's {out_size}")
    activation = reader.text("hidden_act", "gelu_pytorch_tanh")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {activation!r}; known are "
            f"{' and '.join(_ACTIVATIONS)}."
        )
    layers = reader.integer("depth", MAX_LAYERS)
    found = reader.raw("deepstack_visual_indexes") or ()
    deepstack = reader.integers("deepstack_visual_indexes", len(found), layers - 1) if found else ()
    spec = VisionSpec(
        hidden_size=reader.integer("hidden_size", MAX_WIDTH),
        num_layers=layers,
        num_heads=reader.integer("num_heads", MAX_HEADS),
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH),
        activation=_ACTIVATIONS[activation],
        patch_size=reader.integer("patch_size", _MAX_PATCH, 16),
        temporal_patch=reader.integer("temporal_patch_size", _MAX_PATCH, 2),
        merge=reader.integer("spatial_merge_size", _MAX_PATCH, 2),
        num_positions=reader.integer("num_position_embeddings", MAX_WIDTH),
        rope_theta=_ROPE_THETA,
        norm_eps=_NORM_EPS,
        weights=_rules("model.visual.", layers, len(deepstack)),
        deepstack=deepstack,
    )
    if spec.hidden_size % (4 * spec.num_heads):
        raise reader.error("hidden_size", f"is {spec.hidden_size}, which {spec.num_heads} heads "
                           "cannot share in multiples of 4")  # fmt: skip
    if isqrt(spec.num_positions) ** 2 != spec.num_positions:
        raise reader.error("num_position_embeddings", "must be a square")
    return spec


def rope_axes(reader: Reader, rope: RopeSpec) -> RopeSpec:
    """`rope` with the coordinate of each frequency, as `mrope_section` deals them out: in turns
    (time, row, column, time, ...) as long as each has some left, or in three runs."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling") or reader
    half = rope.rotary_dim // 2
    sizes = section.integers("mrope_section", 3, MAX_CONTEXT)
    if sum(sizes) != half:
        raise section.error("mrope_section", f"must add up to {half}, half the rotary dimension")
    if section.flag("mrope_interleaved", True):
        axes = tuple(at % 3 if at < 3 * sizes[at % 3] else 0 for at in range(half))
    else:
        axes = tuple(axis for axis, size in enumerate(sizes) for _ in range(size))
    return replace(rope, axes=axes)


def _rules(prefix: str, num_layers: int, num_deepstack: int) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_qwen3_vl.py)."""
    block, source = "vision.blocks.{layer}.", prefix + "blocks.{layer}."
    blocks = (
        *linear_rules(block + "attention_norm", (source + "norm1",)),
        *linear_rules(block + "qkv", (source + "attn.qkv",)),
        *linear_rules(block + "output", (source + "attn.proj",)),
        *linear_rules(block + "mlp_norm", (source + "norm2",)),
        *linear_rules(block + "up", (source + "mlp.linear_fc1",)),
        *linear_rules(block + "down", (source + "mlp.linear_fc2",)),
    )
    merger = _merger("vision.merger.", prefix + "merger.")
    deeper = _merger("vision.deepstack.{layer}.", prefix + "deepstack_merger_list.{layer}.")
    return (
        *linear_rules("vision.patches", (prefix + "patch_embed.proj",)),
        WeightRule("vision.positions.weight", (prefix + "pos_embed.weight",)),
        *_of_layers(blocks, num_layers),
        *merger,
        *_of_layers(deeper, num_deepstack),
    )


def _merger(param: str, source: str) -> list[WeightRule]:
    return [
        *linear_rules(param + "norm", (source + "norm",)),
        *linear_rules(param + "up", (source + "linear_fc1",)),
        *linear_rules(param + "down", (source + "linear_fc2",)),
    ]


def _of_layers(rules: Iterable[WeightRule], count: int) -> list[WeightRule]:
    return [replace(rule, layers=tuple(range(count))) for rule in rules]
