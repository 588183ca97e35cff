"""Gemma 4's vision transformer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

_MAX_PATCH = 256
_ACTIVATION = "gelu_pytorch_tanh"
# Gemma4VisionConfig.default_theta, where `rope_parameters` leaves it out.
_ROPE_THETA = 100.0
# A GGUF does not say these.
_GGUF_POSITIONS, _GGUF_MERGE = 10240, 3


def vision_from_config(config: Mapping[str, Any], both_ways: bool) -> VisionSpec:
    """`vision_config` of a config.json that has one; `both_ways` as in VisionSpec."""
    section = config["vision_config"]
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"config.json: vision_config must be an object, not {section!r}. The file is damaged "
            "or not meant for this program; fetch it again."
        )
    reader = Reader(section, "config.json: vision_config")
    _refuse_other_kinds(reader)
    layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    head_dim = reader.integer("head_dim", MAX_WIDTH)
    if heads * head_dim != hidden or head_dim % 4:
        raise reader.error(
            "head_dim", f"is {head_dim}: {heads} heads of a multiple of 4 must make up {hidden}"
        )
    if reader.integer("num_key_value_heads", MAX_HEADS, heads) != heads:
        raise reader.error("num_key_value_heads", f"must be num_attention_heads, {heads}")
    rope = reader.section("rope_parameters") or Reader({}, "config.json")
    standardized = reader.flag("standardize", False)
    clipped = reader.flag("use_clipped_linears", False)
    return VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH),
        activation="gelu_tanh",
        patch_size=reader.integer("patch_size", _MAX_PATCH),
        temporal_patch=1,
        merge=reader.integer("pooling_kernel_size", _MAX_PATCH),
        num_positions=reader.integer("position_embedding_size", MAX_WIDTH),
        rope_theta=rope.number("rope_theta", _ROPE_THETA, above=1.0),
        norm_eps=reader.number("rms_norm_eps", 1e-6, below=1.0),
        weights=_rules(_CONFIG, layers, standardized, clipped),
        both_ways=both_ways,
        pooled=True,
        gated=True,
        clipped=clipped,
        standardized=standardized,
    )


def vision_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], out_size: int, both_ways: bool
) -> VisionSpec:
    """`clip.*` of the file with the tower, which does not say what `both_ways` does."""
    clip = Reader(metadata, "GGUF metadata", "clip.")
    # The file has room for a tower for sound, whose kind is another.
    kind = clip.text("vision.projector_type", clip.raw("projector_type"))
    if kind != "gemma4v":
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and Gemma 4's is a 'gemma4v'; give another file with "
            "--mmproj."
        )
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    layers = reader.integer("block_count", MAX_LAYERS)
    heads = reader.integer("attention.head_count", MAX_HEADS)
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    if hidden % (4 * heads):
        raise reader.error(
            "embedding_length",
            f"is {hidden}, which {heads} heads cannot share in multiples of 4",
        )
    standardized = set(_GGUF.means) <= set(tensor_names)
    clipped = "v.blk.0.attn_q.input_min" in tensor_names
    return VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=reader.integer("feed_forward_length", MAX_WIDTH),
        activation="gelu_tanh",
        patch_size=reader.integer("patch_size", _MAX_PATCH),
        temporal_patch=1,
        merge=reader.integer("projector.scale_factor", _MAX_PATCH, _GGUF_MERGE),
        num_positions=_GGUF_POSITIONS,
        rope_theta=_ROPE_THETA,
        norm_eps=reader.number("attention.layer_norm_epsilon", 1e-6, below=1.0),
        weights=_rules(_GGUF, layers, standardized, clipped),
        color_planes=True,
        both_ways=both_ways,
        pooled=True,
        gated=True,
        clipped=clipped,
        standardized=standardized,
    )


def _refuse_other_kinds(reader: Reader) -> None:
    if reader.flag("attention_bias", False):
        raise UnsupportedModelError(
            "config.json: vision_config.attention_bias is true, which is not supported; no "
            "published Gemma 4 has it."
        )
    activation = reader.text("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {activation!r}; known is {_ACTIVATION}."
        )


@dataclass(frozen=True)
class _Names:
    """A naming scheme; `.weight` follows all but `means`."""

    patches: str
    positions: str
    projection: str
    means: tuple[str, str]
    """What moves the means of patches, and what scales them."""
    block: str
    parts: tuple[tuple[str, ...], ...]
    """Names of a block's tensors, in the order of `_PARTS`."""


# What a block holds; several sources are the shards of one parameter.
_PARTS = (
    "attention_norm", "qkv", "q_norm", "k_norm", "output", "attention_result_norm", "mlp_norm",
    "gate_up", "down", "result_norm",
)  # fmt: skip
_CLIPPED = ("qkv", "output", "gate_up", "down")
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
# As transformers writes them (modeling_gemma4.py).
_CONFIG = _Names(
    patches="model.vision_tower.patch_embedder.input_proj.weight",
    positions="model.vision_tower.patch_embedder.position_embedding_table",
    projection="model.embed_vision.embedding_projection.weight",
    means=("model.vision_tower.std_bias", "model.vision_tower.std_scale"),
    block="model.vision_tower.encoder.layers.{layer}.",
    parts=(
        ("input_layernorm",),
        tuple(f"self_attn.{name}_proj.linear" for name in "qkv"),
        ("self_attn.q_norm",),
        ("self_attn.k_norm",),
        ("self_attn.o_proj.linear",),
        ("post_attention_layernorm",),
        ("pre_feedforward_layernorm",),
        ("mlp.gate_proj.linear", "mlp.up_proj.linear"),
        ("mlp.down_proj.linear",),
        ("post_feedforward_layernorm",),
    ),
)
# As llama.cpp writes them (gguf-py/gguf/constants.py, conversion/gemma.py).
_GGUF = _Names(
    patches="v.patch_embd.weight",
    positions="v.position_embd.weight",
    projection="mm.input_projection.weight",
    means=("v.std_bias", "v.std_scale"),
    block="v.blk.{layer}.",
    parts=(
        ("ln1",),
        ("attn_q", "attn_k", "attn_v"),
        ("attn_q_norm",),
        ("attn_k_norm",),
        ("attn_out",),
        ("attn_post_norm",),
        ("ln2",),
        ("ffn_gate", "ffn_up"),
        ("ffn_down",),
        ("ffn_post_norm",),
    ),
)


def _rules(
    names: _Names, num_layers: int, standardized: bool, clipped: bool
) -> tuple[WeightRule, ...]:
    mean, deviation = (
        WeightRule(f"vision.{param}.weight", (source,))
        for param, source in zip(("token_mean", "token_scale"), names.means, strict=True)
    )
    layers, block = tuple(range(num_layers)), "vision.blocks.{layer}."
    blocks = []
    for param, sources in zip(_PARTS, names.parts, strict=True):
        if clipped and param in _CLIPPED:
            blocks += _clipped_rules(f"{block}{param}.parts.", names.block, sources)
            continue
        whole = tuple(f"{names.block}{source}.weight" for source in sources)
        blocks.append(WeightRule(f"{block}{param}.weight", whole))
    return (
        WeightRule("vision.patches.weight", (names.patches,)),
        WeightRule("vision.positions.weight", (names.positions,)),
        *(replace(rule, layers=layers) for rule in blocks),
        *((mean, deviation) if standardized else ()),
        WeightRule("vision.projection.weight", (names.projection,)),
    )


def _clipped_rules(param: str, before: str, sources: tuple[str, ...]) -> list[WeightRule]:
    """Each of the linear layers that are merged elsewhere, and its bounds."""
    rules = []
    for index, source in enumerate(sources):
        bounded = before + source.removesuffix(".linear")
        bounds = tuple(f"{bounded}.{bound}" for bound in _BOUNDS)
        rules += [
            WeightRule(f"{param}{index}.linear.weight", (f"{before}{source}.weight",)),
            WeightRule(f"{param}{index}.clip.weight", bounds),
        ]
    return rules
