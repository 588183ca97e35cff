"""Llama 4's vision transformer, which reads a picture in tiles of one size, and what makes tokens
of its patches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.families.qwen_vision import MAX_PATCH, ROPE_THETA, check_heads, of_layers
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, RowPiece, WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError

NAME, _PROJECTOR = "Llama4ForConditionalGeneration", "llama4"
# torch's LayerNorm; modeling_llama4.py leaves norm_eps unread.
_NORM_EPS = 1e-5


def vision_from_config(config: Mapping[str, Any]) -> VisionSpec:
    """`vision_config` of a config.json that has one."""
    reader = Reader(config, "config.json").section("vision_config")
    assert reader is not None
    rope = reader.section("rope_parameters") or reader
    ratio = reader.number("pixel_shuffle_ratio", 0.5)
    patch = reader.integer("patch_size", MAX_PATCH, 14)
    size = reader.integer("projector_output_dim", MAX_WIDTH, 4096)
    for name in ("projector_input_dim", "vision_output_dim"):
        if reader.integer(name, MAX_WIDTH, size) != size:
            raise reader.error(name, f"must be projector_output_dim, {size}")
    return _vision(
        reader,
        ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
        _CONFIG,
        patch=patch,
        side=reader.integer("image_size", MAX_WIDTH, 448) // patch,
        merge=int(1 / ratio),
        theta=rope.number("rope_theta", ROPE_THETA, above=1.0),
        adapter=size,
    )


def with_gguf_tower(
    spec: ModelSpec, metadata: Mapping[str, Any], tensors: Collection[str]
) -> ModelSpec:
    """`spec` of a GGUF with the tower in the file beside it, if there is one."""
    if "clip.vision.projection_dim" not in metadata:
        return spec
    kind = Reader(metadata, "GGUF metadata", "clip.").text("projector_type")
    if kind != _PROJECTOR:
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and this model's is a {_PROJECTOR!r}; give another "
            "file with --mmproj."
        )
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != spec.hidden_size:
        raise reader.error("projection_dim", f"must be the language model's {spec.hidden_size}")
    patch = reader.integer("patch_size", MAX_PATCH)
    width = tensors["mm.model.mlp.1.weight"].shape[0] if isinstance(tensors, Mapping) else 4096
    vision = _vision(
        reader,
        ("block_count", "attention.head_count", "embedding_length", "feed_forward_length"),
        _GGUF,
        patch=patch,
        side=reader.integer("image_size", MAX_WIDTH) // patch,
        merge=reader.integer("projector.scale_factor", MAX_PATCH, 2),
        theta=ROPE_THETA,
        adapter=width,
    )
    return replace(spec, architecture=NAME, vision=vision)


def _vision(
    reader: Reader,
    sizes: tuple[str, str, str, str],
    names: "_Names",
    *,
    patch: int,
    side: int,
    merge: int,
    theta: float,
    adapter: int,
) -> VisionSpec:
    """`sizes`: fields with the numbers of layers and heads and both widths; `side`: patches."""
    layers = reader.integer(sizes[0], MAX_LAYERS)
    heads = reader.integer(sizes[1], MAX_HEADS)
    hidden, wide = (reader.integer(name, MAX_WIDTH) for name in sizes[2:])
    if side % merge:
        raise reader.error("image_size", f"gives {side} patches a side, no multiple of {merge}")
    spec = VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=wide,
        activation="gelu",
        patch_size=patch,
        temporal_patch=1,
        merge=merge,
        num_positions=side**2,
        rope_theta=theta,
        norm_eps=_NORM_EPS,
        weights=(),
        patch_bias=False,
        class_token=True,
        patch_norm=True,
        final_norm=True,
        flat_patches=True,
        adapter=adapter,
    )
    check_heads(reader, sizes[2], spec)
    return replace(spec, weights=_rules(names, spec))


@dataclass(frozen=True)
class _Names:
    """A naming scheme."""

    patches: str
    positions: str
    class_token: str
    norms: tuple[str, str]
    """In front of the blocks and behind them."""
    merger: tuple[str, str, str]
    block: str
    parts: Mapping[str, tuple[str, ...]]
    """Names of a block's layers by parameter."""


_TOWER = "vision_model."
_CONFIG = _Names(
    patches=_TOWER + "patch_embedding.linear",
    positions=_TOWER + "positional_embedding_vlm",
    class_token=_TOWER + "class_embedding",
    norms=(_TOWER + "layernorm_pre", _TOWER + "layernorm_post"),
    merger=(
        _TOWER + "vision_adapter.mlp.fc1",
        _TOWER + "vision_adapter.mlp.fc2",
        "multi_modal_projector.linear_1",
    ),
    block=_TOWER + "model.layers.{layer}.",
    parts={
        "attention_norm": ("input_layernorm",),
        "output": ("self_attn.o_proj",),
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp_norm": ("post_attention_layernorm",),
        "up": ("mlp.fc1",),
        "down": ("mlp.fc2",),
    },
)
# As llama.cpp writes them (gguf-py/gguf/constants.py, conversion/llama4.py).
_GGUF = _Names(
    patches="v.patch_embd",
    positions="v.position_embd.weight",
    class_token="v.class_embd",
    norms=("v.pre_ln", "v.post_ln"),
    merger=("mm.model.mlp.1", "mm.model.mlp.2", "mm.model.fc"),
    block="v.blk.{layer}.",
    parts={
        "attention_norm": ("ln1",),
        "output": ("attn_out",),
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "mlp_norm": ("ln2",),
        "up": ("ffn_up",),
        "down": ("ffn_down",),
    },
)


def _rules(names: _Names, spec: VisionSpec) -> tuple[WeightRule, ...]:
    block, count = "vision.blocks.{layer}.", spec.num_positions
    blocks = [
        rule
        for param, own in names.parts.items()
        for rule in linear_rules(block + param, tuple(names.block + name for name in own))
    ]
    # Rotary pairs lie side by side.
    turned = (spec.head_dim, spec.head_dim, 0)
    blocks = [replace(rule, unpermute=turned) if ".qkv." in rule.param else rule for rule in blocks]
    positions, (first, last) = (names.positions,), names.norms
    patches, token = RowPiece(count + 1, 0, count), RowPiece(count + 1, count, 1)
    up, down, projection = names.merger
    return (
        *linear_rules("vision.patches", (names.patches,), False),
        WeightRule("vision.positions.weight", positions, pieces=(patches,)),
        WeightRule("vision.class_position.weight", positions, pieces=(token,)),
        WeightRule("vision.class_token.weight", (names.class_token,)),
        *linear_rules("vision.patch_norm", (first,)),
        *of_layers(blocks, spec.num_layers),
        *linear_rules("vision.norm", (last,)),
        *linear_rules("vision.merger.up", (up,), False),
        *linear_rules("vision.merger.down", (down,), False),
        *linear_rules("vision.merger.projection", (projection,), False),
    )
