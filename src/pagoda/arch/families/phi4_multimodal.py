"""Phi-4-multimodal (arXiv 2503.01743): Phi-4-mini behind SigLIP's vision transformer, which reads a
picture in tiles of one size, and all of it once more. Sounds are not read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.families import phi3
from pagoda.arch.families.gemma3_vision import SIGLIP_PARTS, block_rules
from pagoda.arch.families.qwen_vision import MAX_PATCH
from pagoda.arch.names import linear_rules, renamed
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError

NAME = "Phi4MultimodalForCausalLM"
_ACTIVATION = "gelu_pytorch_tanh"
_EMBED = "model.embed_tokens_extend."
_IMAGE = _EMBED + "image_embed."
_TOWER = _IMAGE + "img_processor."
# Sounds, and what stands behind the layer of the tower that is read.
_UNUSED = (_EMBED + "audio_embed.*", _TOWER + "post_layernorm.*", _TOWER + "head.*")
# The two adapters of a checkpoint that its own code reads; they also lie in folders beside it.
_ADAPTERS = ("model.layers.*.lora_A.*", "model.layers.*.lora_B.*")
_ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
# How its own code makes tokens of a picture (`embd_layer.image_embd_layer`).
_AS_PUBLISHED = {
    "use_hd_transform": True, "with_learnable_separator": True, "hd_transform_order": "sub_glb",
    "image_token_compression_cls": "avg_pool_2d",
}  # fmt: skip


@dataclass(frozen=True)
class _Names:
    """Names beside the tower's, without `.weight` for the linear layers."""

    row_end: str
    whole_begin: str
    up: str
    down: str


_CONFIG = _Names(
    row_end="sub_img_feature_extensor",
    whole_begin="global_img_feature_extensor",
    up="img_projection_up",
    down="img_projection_down",
)
_PUBLISHED = _Names("sub_GN", "glb_GN", "img_projection.0", "img_projection.2")


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    """By the config.json of transformers' class."""
    return _spec(config, _CONFIG)


def published_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """By that of Microsoft's own code, which has names of its own and its adapters inside."""
    outer = Reader(config, "config.json")
    inner = outer.section("embd_layer") or outer
    own = inner.section("image_embd_layer") or inner
    for name, value in _AS_PUBLISHED.items():
        found = own.raw(name)
        if found not in (None, value):
            raise UnsupportedModelError(
                f"config.json: embd_layer.image_embd_layer.{name} is {found!r}; known is "
                f"{value!r}, as in microsoft/Phi-4-multimodal-instruct."
            )
    spec = _spec(config, _PUBLISHED)
    adapted = {f".layers.{{layer}}.{part}.{name}.": f".layers.{{layer}}.{part}.{name}.base_layer."
               for part in ("self_attn", "mlp") for name in _ADAPTED}  # fmt: skip
    return replace(
        spec,
        weights=renamed(spec.weights, adapted),
        ignored_weights=(*spec.ignored_weights, *_ADAPTERS),
    )


def _spec(config: Mapping[str, Any], names: _Names) -> ModelSpec:
    text = phi3.from_config(config)
    # Microsoft's own config.json says nothing of the tower.
    tower = Reader(config, "config.json").section("vision_config") or Reader({}, "config.json")
    layers = tower.integer("num_hidden_layers", MAX_LAYERS, 27)
    vision = _vision(tower, layers, names)
    behind = (f"{_TOWER}encoder.layers.{layer}.*" for layer in range(vision.num_layers, layers))
    return replace(
        text,
        architecture=NAME,
        vision=vision,
        ignored_weights=(*text.ignored_weights, *_UNUSED, *behind),
    )


def _vision(reader: Reader, layers: int, names: _Names) -> VisionSpec:
    activation = reader.text("hidden_act", _ACTIVATION)
    if activation != _ACTIVATION:
        raise UnsupportedModelError(
            f"config.json: the vision tower has {activation!r}; in Phi-4-multimodal known is "
            f"{_ACTIVATION!r}."
        )
    # Outputs are counted from the embeddings on, or from the last layer back.
    read = reader.raw("feature_layer")
    read = -2 if read is None else read
    if not isinstance(read, int) or not read % (layers + 1) > 0 or abs(read) > layers:
        raise reader.error("feature_layer", f"must name one of {layers} layers, not {read!r}")
    patch = reader.integer("patch_size", MAX_PATCH, 14)
    size = reader.integer("image_size", MAX_WIDTH, 448)
    if size % (2 * patch):
        raise UnsupportedModelError(
            f"config.json: the vision tower's image_size is {size}; known are multiples of two "
            f"patches ({2 * patch} pixels), as published."
        )
    if reader.integer("crop_size", MAX_WIDTH, size) != size:
        raise reader.error("crop_size", f"must be image_size, {size}")
    hidden = reader.integer("hidden_size", MAX_WIDTH, 1152)
    heads = reader.integer("num_attention_heads", MAX_HEADS, 16)
    if hidden % heads:
        raise reader.error("hidden_size", f"is {hidden}, which {heads} heads can't share equally")
    return VisionSpec(
        hidden_size=hidden,
        num_layers=read % (layers + 1),
        num_heads=heads,
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH, 4304),
        activation="gelu_tanh",
        patch_size=patch,
        temporal_patch=1,
        merge=2,
        num_positions=(size // patch) ** 2,
        rope_theta=0.0,
        norm_eps=reader.number("layer_norm_eps", 1e-6, below=1.0),
        weights=_rules(names, read % (layers + 1)),
        split_patches=True,
        tiled=True,
    )


def _rules(names: _Names, num_layers: int) -> tuple[WeightRule, ...]:
    positions = _TOWER + "embeddings.position_embedding.weight"
    return (
        *linear_rules("vision.patches", (_TOWER + "embeddings.patch_embedding",)),
        WeightRule("vision.positions.weight", (positions,)),
        *block_rules(_TOWER + "encoder.layers.{layer}.", SIGLIP_PARTS, num_layers),
        WeightRule("vision.row_end.weight", (_IMAGE + names.row_end,)),
        WeightRule("vision.whole_begin.weight", (_IMAGE + names.whole_begin,)),
        *linear_rules("vision.up", (_IMAGE + names.up,)),
        *linear_rules("vision.down", (_IMAGE + names.down,)),
    )
