"""InternViT as InternVL 3 and 3.5 have it (arXiv 2504.10479, 2508.18265), and what makes tokens of
its patches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.families.qwen_vision import MAX_PATCH, of_layers
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, RowPiece, WeightRule
from pagoda.arch.vision import MergerSpec, VisionSpec
from pagoda.base.errors import UnsupportedModelError

NAME, _PROJECTOR = "InternVLForConditionalGeneration", "internvl"
# torch's LayerNorm, where modeling_internvl.py gives none.
_MERGER_EPS = 1e-5


def with_gguf_tower(
    spec: ModelSpec, metadata: Mapping[str, Any], tensors: Collection[str]
) -> ModelSpec:
    """`spec` of a GGUF with the tower in the file beside it, if there is one."""
    if metadata.get("clip.projector_type") != _PROJECTOR:
        return spec
    vision = _vision_from_gguf(metadata, tensors, spec.hidden_size)
    return replace(spec, architecture=NAME, vision=vision)


@dataclass(frozen=True)
class _Traits:
    """What sets one InternViT apart from another."""

    qkv_bias: bool
    qk_norm: bool
    rms_norms: bool
    final_norm: bool


def vision_from_config(outer: Reader) -> VisionSpec:
    """`vision_config` of a config.json, and what stands beside it."""
    reader = outer.section("vision_config") or Reader({}, "config.json: vision_config")
    kind, layer = reader.text("model_type", "internvl_vision"), outer.raw("vision_feature_layer")
    activations = reader.text("hidden_act", "gelu"), outer.text("projector_hidden_act", "gelu")
    chosen = outer.text("vision_feature_select_strategy", "default")
    if (kind, chosen, *activations) != ("internvl_vision", "default", "gelu", "gelu") or (
        layer not in (None, -1) or not reader.flag("use_absolute_position_embeddings", True)
    ):
        raise UnsupportedModelError(
            f"config.json: the vision tower is a {kind!r} with {' and '.join(activations)}, whose "
            f"layer {layer} is read ({chosen}); known is 'internvl_vision' with gelu and learned "
            "positions, all patches of whose last layer are read (default)."
        )
    side, patch = _square(reader, "image_size", 448), _square(reader, "patch_size", 14)
    traits = _Traits(
        qkv_bias=reader.flag("attention_bias", False),
        qk_norm=reader.flag("use_qk_norm", False),
        rms_norms=reader.text("norm_type", "layer_norm") == "rms_norm",
        final_norm=not reader.flag("use_mean_pooling", True),
    )
    if traits.final_norm and traits.rms_norms:
        raise UnsupportedModelError(
            "config.json: norm_type is rms_norm and use_mean_pooling false, which no published "
            "InternVL has together."
        )
    ratio = outer.number("downsample_ratio", 0.5)
    return _vision(
        reader,
        ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
        _CONFIG,
        traits,
        patch=patch,
        side=side // patch,
        merge=int(1 / ratio),
        norm_eps=reader.number("layer_norm_eps", 1e-6, below=1.0),
    )


def _vision_from_gguf(
    metadata: Mapping[str, Any], tensors: Collection[str], out_size: int
) -> VisionSpec:
    """`clip.*` of the file with the tower."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    patch = reader.integer("patch_size", MAX_PATCH)
    traits = _Traits(
        qkv_bias="v.blk.0.attn_q.bias" in tensors,
        qk_norm="v.blk.0.attn_q_norm.weight" in tensors,
        rms_norms="v.blk.0.ln1.bias" not in tensors,
        final_norm="v.post_ln.weight" in tensors,
    )
    return _vision(
        reader,
        ("block_count", "attention.head_count", "embedding_length", "feed_forward_length"),
        _GGUF,
        traits,
        patch=patch,
        side=reader.integer("image_size", MAX_WIDTH) // patch,
        merge=reader.integer("projector.scale_factor", MAX_PATCH, 2),
        norm_eps=reader.number("attention.layer_norm_epsilon", 1e-6, below=1.0),
    )


def _square(reader: Reader, name: str, default: int) -> int:
    """A number, or two that are equal."""
    found = reader.raw(name)
    if isinstance(found, list) and len(found) == 2 and found[0] == found[1]:
        return Reader({name: found[0]}, "config.json: vision_config").integer(name, MAX_WIDTH)
    return reader.integer(name, MAX_WIDTH, default)


def _vision(
    reader: Reader,
    sizes: tuple[str, str, str, str],
    names: "_Names",
    traits: _Traits,
    *,
    patch: int,
    side: int,
    merge: int,
    norm_eps: float,
) -> VisionSpec:
    """`sizes`: fields with the numbers of layers and heads and both widths; `side`: patches."""
    layers = reader.integer(sizes[0], MAX_LAYERS)
    heads = reader.integer(sizes[1], MAX_HEADS)
    hidden, wide = (reader.integer(name, MAX_WIDTH) for name in sizes[2:])
    if hidden % heads:
        raise reader.error(sizes[2], f"is {hidden}, which {heads} heads cannot share equally")
    if side % merge:
        raise reader.error("image_size", f"gives {side} patches a side, no multiple of {merge}")
    return VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=wide,
        activation="gelu",
        patch_size=patch,
        temporal_patch=1,
        merge=merge,
        num_positions=side**2,
        rope_theta=0.0,
        norm_eps=norm_eps,
        weights=_rules(names, layers, side**2, traits),
        class_token=True,
        qkv_bias=traits.qkv_bias,
        qk_norm=traits.qk_norm,
        scaled=True,
        rms_norms=traits.rms_norms,
        final_norm=traits.final_norm,
        split_patches=True,
        merger=MergerSpec(_MERGER_EPS, "gelu", bias=True),
    )


@dataclass(frozen=True)
class _Names:
    """A naming scheme."""

    patches: str
    positions: str
    class_token: str
    norm: str
    merger: tuple[str, str, str]
    """Norm, up and down."""
    block: str
    parts: Mapping[str, tuple[str, ...]]
    """Names of a block's layers by parameter."""
    scales: tuple[str, str]
    """Whole names of the vectors that attention and mlp are multiplied by."""


_CONFIG = _Names(
    patches="vision_tower.embeddings.patch_embeddings.projection",
    positions="vision_tower.embeddings.position_embeddings",
    class_token="vision_tower.embeddings.cls_token",
    norm="vision_tower.layernorm",
    merger=(
        "multi_modal_projector.layer_norm",
        "multi_modal_projector.linear_1",
        "multi_modal_projector.linear_2",
    ),
    block="vision_tower.encoder.layer.{layer}.",
    parts={
        "attention_norm": ("layernorm_before",),
        "qkv": tuple(f"attention.{name}_proj" for name in "qkv"),
        "q_norm": ("attention.q_norm",),
        "k_norm": ("attention.k_norm",),
        "output": ("attention.projection_layer",),
        "mlp_norm": ("layernorm_after",),
        "up": ("mlp.fc1",),
        "down": ("mlp.fc2",),
    },
    scales=("lambda_1", "lambda_2"),
)
# As llama.cpp writes them (gguf-py/gguf/constants.py, conversion/intern_vision.py).
_GGUF = _Names(
    patches="v.patch_embd",
    positions="v.position_embd.weight",
    class_token="v.class_embd",
    norm="v.post_ln",
    merger=("mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3"),
    block="v.blk.{layer}.",
    parts={
        "attention_norm": ("ln1",),
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "q_norm": ("attn_q_norm",),
        "k_norm": ("attn_k_norm",),
        "output": ("attn_out",),
        "mlp_norm": ("ln2",),
        "up": ("ffn_up",),
        "down": ("ffn_down",),
    },
    scales=("ls1.weight", "ls2.weight"),
)


def _rules(
    names: _Names, num_layers: int, num_positions: int, traits: _Traits
) -> tuple[WeightRule, ...]:
    block, rows = "vision.blocks.{layer}.", num_positions + 1
    biased = {
        "attention_norm": not traits.rms_norms, "mlp_norm": not traits.rms_norms,
        "qkv": traits.qkv_bias, "q_norm": False, "k_norm": False,
    }  # fmt: skip
    blocks = [
        rule
        for param, own in names.parts.items()
        if traits.qk_norm or param not in ("q_norm", "k_norm")
        for rule in linear_rules(
            block + param, tuple(names.block + name for name in own), biased.get(param, True)
        )
    ]
    blocks += [
        WeightRule(f"{block}{param}.weight", (names.block + name,))
        for param, name in zip(("attention_scale", "scale"), names.scales, strict=True)
    ]
    positions = (names.positions,)
    norm, up, down = names.merger
    return (
        *linear_rules("vision.patches", (names.patches,)),
        WeightRule("vision.positions.weight", positions, pieces=(RowPiece(rows, 1, rows - 1),)),
        WeightRule("vision.class_position.weight", positions, pieces=(RowPiece(rows, 0, 1),)),
        WeightRule("vision.class_token.weight", (names.class_token,)),
        *of_layers(blocks, num_layers),
        *(linear_rules("vision.norm", (names.norm,)) if traits.final_norm else ()),
        *linear_rules("vision.merger.norm", (norm,)),
        *linear_rules("vision.merger.up", (up,)),
        *linear_rules("vision.merger.down", (down,)),
    )
