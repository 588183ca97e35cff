"""Gemma 3's vision transformer: SigLIP (arXiv 2303.15343), and a projection of the means of its
patches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError
from pagoda.weights.checkpoint import TensorInfo

Tensors = Collection[str] | Mapping[str, TensorInfo]

_MAX_SIDE = 1 << 14
_ACTIVATION = "gelu_pytorch_tanh"
_TOKENS = 256
# Neither preprocessor_config.json nor llama.cpp's default says another.
PATCH_SIZE = 14
_GGUF_MERGE = 4


def vision_from_config(config: Mapping[str, Any]) -> VisionSpec:
    """`vision_config` of a config.json that has one."""
    reader = Reader(config, "config.json")
    tower = reader.section("vision_config")
    assert tower is not None
    kind = tower.text("model_type", "siglip_vision_model")
    activation = tower.text("hidden_act", _ACTIVATION)
    if kind != "siglip_vision_model" or activation != _ACTIVATION:
        raise UnsupportedModelError(
            f"config.json: the vision tower is a {kind!r} with {activation!r}; in Gemma 3 known is "
            f"'siglip_vision_model' with {_ACTIVATION!r}."
        )
    tokens = reader.integer("mm_tokens_per_image", MAX_WIDTH, _TOKENS)
    side = tower.integer("image_size", _MAX_SIDE) // _patch_size(tower)
    across = isqrt(tokens)
    if across**2 != tokens or side % across:
        raise reader.error(
            "mm_tokens_per_image", f"is {tokens}, which do not make up {side} x {side} patches"
        )
    return _vision(
        tower,
        _CONFIG,
        ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
        norm_eps=tower.number("layer_norm_eps", 1e-6, below=1.0),
        side=side,
        merge=side // across,
    )


def vision_from_gguf(metadata: Mapping[str, Any], tensors: Tensors, out_size: int) -> VisionSpec:
    """`clip.*` of the file with the tower."""
    clip = Reader(metadata, "GGUF metadata", "clip.")
    kind = clip.text("projector_type", clip.raw("vision.projector_type"))
    if kind != "gemma3":
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and Gemma 3's is a 'gemma3'; give another file with "
            "--mmproj."
        )
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    side = reader.integer("image_size", _MAX_SIDE) // _patch_size(reader)
    merge = reader.integer("projector.scale_factor", MAX_WIDTH, _GGUF_MERGE)
    if side % merge:
        raise reader.error("image_size", f"gives {side} patches a side, no multiple of {merge}")
    width = reader.integer("feed_forward_length", MAX_WIDTH)
    return _vision(
        reader,
        _SWAPPED if _is_swapped(tensors, width) else _GGUF,
        ("block_count", "attention.head_count", "embedding_length", "feed_forward_length"),
        norm_eps=reader.number("attention.layer_norm_epsilon", 1e-6, below=1.0),
        side=side,
        merge=merge,
    )


def _patch_size(reader: Reader) -> int:
    size = reader.integer("patch_size", _MAX_SIDE)
    if size != PATCH_SIZE:
        raise UnsupportedModelError(
            f"The vision tower has patches of {size} pixels; in Gemma 3 known are {PATCH_SIZE}."
        )
    return size


def _is_swapped(tensors: Tensors, width: int) -> bool:
    """Files of early 2025 have the names of a feed-forward part's two matrices the wrong way."""
    down = tensors.get("v.blk.0.ffn_down.weight") if isinstance(tensors, Mapping) else None
    return down is not None and down.shape[0] == width != down.shape[-1]


@dataclass(frozen=True)
class _Names:
    """A naming scheme."""

    top: tuple[str, ...]
    """In the order of `_TOP`; `.weight` and `.bias` follow the first and the third, and `.weight`
    the second."""
    projection: tuple[str, str]
    """The norm of the means, and the matrix."""
    block: str
    parts: tuple[tuple[str, ...], ...]
    """Names of a block's tensors, in the order of `_PARTS`."""
    adds_one: bool = False
    """To the norm of the means, whose weight says by how much it differs from 1."""


_TOP = ("patches", "positions", "norm")
# What a block holds; several sources are the shards of one parameter.
_PARTS = ("attention_norm", "qkv", "output", "mlp_norm", "up", "down")
# As transformers has them in SigLIP (modeling_siglip.py).
SIGLIP_PARTS = (
    ("layer_norm1",),
    tuple(f"self_attn.{name}_proj" for name in "qkv"),
    ("self_attn.out_proj",),
    ("layer_norm2",),
    ("mlp.fc1",),
    ("mlp.fc2",),
)
_TOWER = "vision_tower.vision_model."
# As the hub's checkpoints have them (modeling_siglip.py, modeling_gemma3.py).
_CONFIG = _Names(
    top=(
        _TOWER + "embeddings.patch_embedding",
        _TOWER + "embeddings.position_embedding",
        _TOWER + "post_layernorm",
    ),
    projection=(
        "multi_modal_projector.mm_soft_emb_norm.weight",
        "multi_modal_projector.mm_input_projection_weight",
    ),
    block=_TOWER + "encoder.layers.{layer}.",
    parts=SIGLIP_PARTS,
    adds_one=True,
)
_GGUF_PARTS = (("ln1",), ("attn_q", "attn_k", "attn_v"), ("attn_out",), ("ln2",))
# As llama.cpp writes them (gguf-py/gguf/constants.py, conversion/gemma.py).
_GGUF = _Names(
    top=("v.patch_embd", "v.position_embd", "v.post_ln"),
    projection=("mm.soft_emb_norm.weight", "mm.input_projection.weight"),
    block="v.blk.{layer}.",
    parts=(*_GGUF_PARTS, ("ffn_up",), ("ffn_down",)),
)
_SWAPPED = _Names(
    _GGUF.top, _GGUF.projection, _GGUF.block, (*_GGUF_PARTS, ("ffn_down",), ("ffn_up",))
)


def _vision(
    reader: Reader,
    names: _Names,
    sizes: tuple[str, str, str, str],
    *,
    norm_eps: float,
    side: int,
    merge: int,
) -> VisionSpec:
    """`sizes`: fields with the numbers of layers and heads and both widths; `side`: patches."""
    layers = reader.integer(sizes[0], MAX_LAYERS)
    heads = reader.integer(sizes[1], MAX_HEADS)
    hidden, wide = (reader.integer(name, MAX_WIDTH) for name in sizes[2:])
    if hidden % heads:
        raise reader.error(sizes[2], f"is {hidden}, which {heads} heads cannot share equally")
    return VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=wide,
        activation="gelu_tanh",
        patch_size=PATCH_SIZE,
        temporal_patch=1,
        merge=merge,
        num_positions=side**2,
        rope_theta=0.0,
        norm_eps=norm_eps,
        weights=_rules(names, layers),
        split_patches=True,
        both_ways=True,
        pooled=True,
    )


def _rules(names: _Names, num_layers: int) -> tuple[WeightRule, ...]:
    rules = [
        WeightRule(f"vision.{param}.{kind}", (f"{source}.{kind}",))
        for param, source in zip(_TOP, names.top, strict=True)
        for kind in (("weight",) if param == "positions" else ("weight", "bias"))
    ]
    norm, matrix = names.projection
    return (
        *rules,
        *block_rules(names.block, names.parts, num_layers),
        WeightRule("vision.token_norm.weight", (norm,), value="1 + x" if names.adds_one else "x"),
        WeightRule("vision.projection.weight", (matrix,)),
    )


def block_rules(
    block: str, parts: tuple[tuple[str, ...], ...], num_layers: int
) -> list[WeightRule]:
    """Rules of SigLIP's blocks; `parts` in the order of `SIGLIP_PARTS`."""
    return [
        WeightRule(
            f"vision.blocks.{{layer}}.{param}.{kind}",
            tuple(f"{block}{source}.{kind}" for source in sources),
            layers=tuple(range(num_layers)),
        )
        for param, sources in zip(_PARTS, parts, strict=True)
        for kind in ("weight", "bias")
    ]
