"""Pixtral's vision transformer (arXiv 2410.07073), whose patches turn by row and column, and what
Mistral Small 3.1 and later have to make tokens of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.families.qwen_vision import MAX_PATCH, ROPE_THETA, check_heads, of_layers
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import Activation, ModelSpec, WeightRule
from pagoda.arch.vision import MergerSpec, VisionSpec
from pagoda.base.errors import UnsupportedModelError

NAME, _PROJECTOR = "Mistral3ForConditionalGeneration", "pixtral"
# modeling_pixtral.py: a constant of the architecture, not in config.json.
_NORM_EPS = 1e-5
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu": "gelu"}


def vision_from_config(config: Mapping[str, Any], norm_eps: float) -> VisionSpec:
    """`vision_config` of a config.json that has one, and what stands beside it; `norm_eps` is the
    language model's."""
    outer = Reader(config, "config.json")
    reader = outer.section("vision_config")
    assert reader is not None
    kind, layer = reader.text("model_type", _PROJECTOR), outer.raw("vision_feature_layer")
    if kind != _PROJECTOR or layer not in (None, -1, [-1]):
        raise UnsupportedModelError(
            f"config.json: the vision tower is a {kind!r} whose layer {layer!r} is read; known is "
            f"{_PROJECTOR!r} and its last layer (-1)."
        )
    rope = reader.section("rope_parameters") or reader
    merger = MergerSpec(
        norm_eps=norm_eps,
        activation=_activation(outer.text("projector_hidden_act", "gelu")),
        bias=outer.flag("multimodal_projector_bias", False),
        reduced=True,
    )
    layers = reader.integer("num_hidden_layers", MAX_LAYERS, 24)
    spec = VisionSpec(
        hidden_size=reader.integer("hidden_size", MAX_WIDTH, 1024),
        num_layers=layers,
        num_heads=reader.integer("num_attention_heads", MAX_HEADS, 16),
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH, 4096),
        activation=_activation(reader.text("hidden_act", "gelu")),
        patch_size=reader.integer("patch_size", MAX_PATCH, 16),
        merge=outer.integer("spatial_merge_size", MAX_PATCH, 2),
        rope_theta=rope.number("rope_theta", ROPE_THETA, above=1.0),
        norm_eps=_NORM_EPS,
        weights=_rules(_CONFIG, layers, merger),
        merger=merger,
        **_TRAITS,
    )
    check_heads(reader, "hidden_size", spec)
    return spec


def with_gguf_tower(
    spec: ModelSpec, metadata: Mapping[str, Any], tensors: Collection[str]
) -> ModelSpec:
    """`spec` of a GGUF with the tower in the file beside it, if there is one."""
    if "clip.vision.projection_dim" not in metadata:
        return spec
    return replace(
        spec,
        architecture=NAME,
        vision=_vision_from_gguf(metadata, tensors, spec.hidden_size),
        # A copy, for who puts tokens between rows of a picture without the language model.
        ignored_weights=(*spec.ignored_weights, "v.token_embd.img_break"),
    )


def _vision_from_gguf(
    metadata: Mapping[str, Any], tensors: Collection[str], out_size: int
) -> VisionSpec:
    """`clip.*` of the file with the tower."""
    clip = Reader(metadata, "GGUF metadata", "clip.")
    kind = clip.text("projector_type")
    if kind != _PROJECTOR or _PATCH_MERGER + ".weight" not in tensors:
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and this model's is a {_PROJECTOR!r} that merges "
            "patches; give another file with --mmproj."
        )
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    layers = reader.integer("block_count", MAX_LAYERS)
    heads = reader.integer("attention.head_count", MAX_HEADS)
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    eps = reader.number("attention.layer_norm_epsilon", _NORM_EPS, below=1.0)
    merger = MergerSpec(eps, "gelu", bias="mm.1.bias" in tensors, reduced=True)
    names = _gguf_names(hidden // heads)
    spec = VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=reader.integer("feed_forward_length", MAX_WIDTH),
        activation="silu" if clip.flag("use_silu", False) else "gelu",
        patch_size=reader.integer("patch_size", MAX_PATCH),
        merge=reader.integer("spatial_merge_size", MAX_PATCH, 2),
        rope_theta=ROPE_THETA,
        norm_eps=eps,
        weights=_rules(names, layers, merger),
        merger=merger,
        **_TRAITS,
    )
    check_heads(reader, "embedding_length", spec)
    return spec


_TRAITS: dict[str, Any] = {
    "temporal_patch": 1, "num_positions": 0, "patch_bias": False, "patch_norm": True,
    "block_bias": False, "rope_in_turns": True, "rms_norms": True, "gated": True,
    "split_patches": True,
}  # fmt: skip


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {name!r}; known are "
            f"{' and '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name]


@dataclass(frozen=True)
class _Names:
    """A naming scheme, without `.weight`."""

    patches: str
    patch_norm: str
    block: str
    norms: tuple[str, str]
    qkv: tuple[str, str, str]
    output: str
    mlp: tuple[str, str, str]
    """Gate, up and down."""
    merger: tuple[str, str, str, str]
    """Norm, reduce, up and down."""
    unpermute: int = 0
    """The head size whose rotary pairs q and k have side by side."""


# As the hub's checkpoints have them (modeling_pixtral.py, modeling_mistral3.py).
_CONFIG = _Names(
    patches="vision_tower.patch_conv",
    patch_norm="vision_tower.ln_pre",
    block="vision_tower.transformer.layers.{layer}.",
    norms=("attention_norm", "ffn_norm"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
    merger=(
        "multi_modal_projector.norm",
        "multi_modal_projector.patch_merger.merging_layer",
        "multi_modal_projector.linear_1",
        "multi_modal_projector.linear_2",
    ),
)
_PATCH_MERGER = "mm.patch_merger"


def _gguf_names(head_dim: int) -> _Names:
    """As llama.cpp writes them (gguf-py/gguf/constants.py, conversion/llava.py)."""
    return _Names(
        patches="v.patch_embd",
        patch_norm="v.pre_ln",
        block="v.blk.{layer}.",
        norms=("ln1", "ln2"),
        qkv=("attn_q", "attn_k", "attn_v"),
        output="attn_out",
        mlp=("ffn_gate", "ffn_up", "ffn_down"),
        merger=("mm.input_norm", _PATCH_MERGER, "mm.1", "mm.2"),
        unpermute=head_dim,
    )


def _rules(names: _Names, num_layers: int, merger: MergerSpec) -> tuple[WeightRule, ...]:
    block, source = "vision.blocks.{layer}.", names.block
    turned = (names.unpermute, names.unpermute, 0) if names.unpermute else ()
    qkv = tuple(f"{source}{name}.weight" for name in names.qkv)
    gate, up, down = (source + name for name in names.mlp)
    blocks = (
        *linear_rules(block + "attention_norm", (source + names.norms[0],), False),
        WeightRule(block + "qkv.weight", qkv, unpermute=turned),
        *linear_rules(block + "output", (source + names.output,), False),
        *linear_rules(block + "mlp_norm", (source + names.norms[1],), False),
        *linear_rules(block + "gate_up", (gate, up), False),
        *linear_rules(block + "down", (down,), False),
    )
    norm, reduce, wide, last = names.merger
    return (
        *linear_rules("vision.patches", (names.patches,), False),
        *linear_rules("vision.patch_norm", (names.patch_norm,), False),
        *of_layers(blocks, num_layers),
        *linear_rules("vision.merger.norm", (norm,), False),
        *linear_rules("vision.merger.reduce", (reduce,), False),
        *linear_rules("vision.merger.up", (wide,), merger.bias),
        *linear_rules("vision.merger.down", (last,), merger.bias),
    )
