"""Gemma 4's vision transformer, as config.json describes it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import VisionSpec, WeightRule
from pagoda.base.errors import CheckpointError, UnsupportedModelError

_MAX_PATCH = 256
_ACTIVATION = "gelu_pytorch_tanh"
# Gemma4VisionConfig.default_theta, where `rope_parameters` leaves it out.
_ROPE_THETA = 100.0


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
        weights=_rules(layers, standardized),
        both_ways=both_ways,
        pooled=True,
        standardized=standardized,
    )


def _refuse_other_kinds(reader: Reader) -> None:
    for name in ("use_clipped_linears", "attention_bias"):
        if reader.flag(name, False):
            raise UnsupportedModelError(
                f"config.json: vision_config.{name} is true, which is not supported yet."
            )
    activation = reader.text("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {activation!r}; known is {_ACTIVATION}."
        )


def _rules(num_layers: int, standardized: bool) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_gemma4.py)."""
    tower = "model.vision_tower."
    block, source = "vision.blocks.{layer}.", tower + "encoder.layers.{layer}."
    attention, mlp = source + "self_attn.", source + "mlp."
    norms = {
        "attention_norm": "input_layernorm",
        "attention_result_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "result_norm": "post_feedforward_layernorm",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }
    matrices = {
        "qkv": tuple(f"{attention}{name}_proj.linear" for name in "qkv"),
        "output": (attention + "o_proj.linear",),
        "gate_up": tuple(f"{mlp}{name}_proj.linear" for name in ("gate", "up")),
        "down": (mlp + "down_proj.linear",),
    }
    blocks = [
        *(WeightRule(f"{block}{ours}.weight", (f"{source}{theirs}.weight",))
          for ours, theirs in norms.items()),
        *(rule for name, sources in matrices.items()
          for rule in linear_rules(block + name, sources, bias=False)),
    ]  # fmt: skip
    moved = [
        WeightRule("vision.token_mean.weight", (tower + "std_bias",)),
        WeightRule("vision.token_scale.weight", (tower + "std_scale",)),
    ]
    embedder = tower + "patch_embedder."
    return (
        WeightRule("vision.patches.weight", (embedder + "input_proj.weight",)),
        WeightRule("vision.positions.weight", (embedder + "position_embedding_table",)),
        *(replace(rule, layers=tuple(range(num_layers))) for rule in blocks),
        *(moved if standardized else ()),
        WeightRule("vision.projection.weight", ("model.embed_vision.embedding_projection.weight",)),
    )
