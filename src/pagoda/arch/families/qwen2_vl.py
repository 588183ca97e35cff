"""Qwen2-VL and Qwen2.5-VL (arXiv 2409.12191, 2502.13923), also as UI-TARS: Qwen2 with a vision
transformer in front and positions of three coordinates. The towers differ: Qwen2.5-VL's has gated
layers that see squares of the picture, and a few that see all of it."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.families.qwen_vision import (
    MAX_PATCH,
    NORM_EPS,
    ROPE_THETA,
    check_heads,
    config_sections,
    layers_with_axes,
    of_layers,
    vision_section,
)
from pagoda.arch.names import Traits, linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError

_TRAITS = Traits(qkv_bias=True)
_QWEN2 = "Qwen2VLForConditionalGeneration"
_QWEN25 = "Qwen2_5_VLForConditionalGeneration"
# configuration_qwen2_vl.py, configuration_qwen2_5_vl.py: what checkpoints may leave out, since
# transformers has long saved only what differs from it.
_TEXT = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}
_FULL_LAYERS = (7, 15, 23, 31)
_WINDOW = 112
# Published checkpoints have 2, which a GGUF does not say.
_TOKENS_PER_SECOND, _PUBLISHED_TOKENS_PER_SECOND = 4.0, 2.0
_PROJECTORS = {"qwen2vl_merger": _QWEN2, "qwen2.5vl_merger": _QWEN25}
_MLP_RATIO = 4


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _QWEN2)


def qwen25_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _QWEN25)


def _from_config(config: Mapping[str, Any], architecture: str) -> ModelSpec:
    reader = config_reader({**_TEXT, **config, "tie_word_embeddings": _tied(config)})
    spec = spec_from_config(reader, architecture, _TRAITS, layer_windows(reader))
    tower = vision_section(config)
    vision = _qwen2_tower(tower) if architecture == _QWEN2 else _qwen25_tower(tower)
    width = "hidden_size" if architecture == _QWEN2 else "out_hidden_size"
    if tower.integer(width, MAX_WIDTH, 3584) != spec.hidden_size:
        raise tower.error(width, f"must be the language model's {spec.hidden_size}")
    check_heads(tower, "embed_dim" if architecture == _QWEN2 else "hidden_size", vision)
    return replace(
        spec,
        layers=layers_with_axes(spec.layers, *config_sections(reader), in_turns=False),
        vision=vision,
    )


def _tied(config: Mapping[str, Any]) -> bool:
    """By either part: that which older versions of transformers wrote into the inner one counts."""
    parts = (config, config.get("text_config"))
    found = [part.get("tie_word_embeddings") for part in parts if isinstance(part, Mapping)]
    return True in found


def _qwen2_tower(reader: Reader) -> VisionSpec:
    _check_activation(reader, "quick_gelu")
    layers, hidden = _depth(reader), reader.integer("embed_dim", MAX_WIDTH, 1280)
    ratio = reader.integer("mlp_ratio", MAX_WIDTH, _MLP_RATIO)
    return replace(
        _tower(reader, hidden, layers),
        intermediate_size=ratio * hidden,
        activation="gelu_quick",
        weights=_rules(layers, ("mlp.fc1",), "mlp.fc2", norm_bias=True),
    )


def _qwen25_tower(reader: Reader) -> VisionSpec:
    _check_activation(reader, "silu")
    layers, hidden = _depth(reader), reader.integer("hidden_size", MAX_WIDTH, 3584)
    tower = _tower(reader, hidden, layers)
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    full = _FULL_LAYERS
    if reader.has("fullatt_block_indexes"):
        full = tuple(reader.listed("fullatt_block_indexes"))
    if not all(type(layer) is int and 0 <= layer < layers for layer in full):
        raise reader.error("fullatt_block_indexes", f"must list some of {layers} layers")
    pixels = reader.integer("window_size", MAX_WIDTH, _WINDOW)
    if pixels < tower.patch_size * tower.merge:
        raise reader.error(
            "window_size", f"is {pixels}, less than a token's {tower.patch_size * tower.merge}"
        )
    return replace(
        _gated(tower, pixels, full),
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH, 3420),
        tokens_per_second=reader.number("tokens_per_second", _TOKENS_PER_SECOND),
        weights=_rules(layers, gate_up, "mlp.down_proj", norm_bias=False),
    )


def _tower(reader: Reader, hidden: int, layers: int) -> VisionSpec:
    """What both have in a config.json."""
    rope = reader.section("rope_parameters") or reader
    return VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=reader.integer("num_heads", MAX_HEADS, 16),
        intermediate_size=0,
        activation="silu",
        patch_size=reader.integer("patch_size", MAX_PATCH, 14),
        temporal_patch=reader.integer("temporal_patch_size", MAX_PATCH, 2),
        merge=reader.integer("spatial_merge_size", MAX_PATCH, 2),
        num_positions=0,
        rope_theta=rope.number("rope_theta", ROPE_THETA, above=1.0),
        norm_eps=NORM_EPS,
        weights=(),
        patch_bias=False,
    )


def _gated(tower: VisionSpec, window_pixels: int, full_layers: tuple[int, ...]) -> VisionSpec:
    return replace(
        tower,
        rms_norms=True,
        gated=True,
        window=window_pixels // (tower.patch_size * tower.merge),
        full_layers=full_layers,
    )


def _depth(reader: Reader) -> int:
    return reader.integer("depth", MAX_LAYERS, 32)


def _check_activation(reader: Reader, known: str) -> None:
    activation = reader.text("hidden_act", known)
    if activation != known:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {activation!r}; this architecture has "
            f"{known} here."
        )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    """With a vision tower (`--mmproj`), or without: then all that is left is a model of text."""
    reader = Reader(metadata, "GGUF metadata", "qwen2vl.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    kind = metadata.get("clip.projector_type")
    if kind is None:
        return spec_from_gguf(reader, tokenizer, "Qwen2ForCausalLM", _TRAITS, tensor_names)
    if kind not in _PROJECTORS:
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and this model's is one of "
            f"{', '.join(_PROJECTORS)}; give another file with --mmproj."
        )
    spec = spec_from_gguf(reader, tokenizer, _PROJECTORS[kind], _TRAITS, tensor_names)
    return replace(
        spec,
        layers=layers_with_axes(spec.layers, reader, "rope.dimension_sections", in_turns=False),
        vision=_gguf_tower(metadata, kind == "qwen2.5vl_merger", spec.hidden_size),
    )


def _gguf_tower(metadata: Mapping[str, Any], gated: bool, out_size: int) -> VisionSpec:
    clip = Reader(metadata, "GGUF metadata", "clip.")
    if clip.flag("use_gelu", False) or clip.flag("use_silu", False) != gated:
        known = "silu" if gated else "quick gelu"
        raise UnsupportedModelError(f"The vision tower has another activation than {known}.")
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    layers = reader.integer("block_count", MAX_LAYERS)
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    mlp = ("ffn_gate", "ffn_up") if gated else ("ffn_up",)
    spec = VisionSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=reader.integer("attention.head_count", MAX_HEADS),
        # Of Qwen2-VL llama.cpp's converter writes the language model's width as that of the MLP.
        intermediate_size=reader.integer("feed_forward_length", MAX_WIDTH)
        if gated
        else _MLP_RATIO * hidden,
        activation="silu" if gated else "gelu_quick",
        patch_size=reader.integer("patch_size", MAX_PATCH),
        temporal_patch=2,
        merge=reader.integer("spatial_merge_size", MAX_PATCH, 2),
        num_positions=0,
        rope_theta=ROPE_THETA,
        norm_eps=reader.number("attention.layer_norm_epsilon", NORM_EPS, below=1.0),
        weights=_gguf_rules(layers, mlp, norm_bias=not gated),
        patch_bias=False,
        split_patches=True,
    )
    check_heads(reader, "embedding_length", spec)
    if not gated:
        return spec
    every = reader.integer("n_wa_pattern", MAX_LAYERS)
    full = tuple(range(every - 1, layers, every))
    return replace(_gated(spec, _WINDOW, full), tokens_per_second=_PUBLISHED_TOKENS_PER_SECOND)


def _rules(
    num_layers: int, up: tuple[str, ...], down: str, *, norm_bias: bool
) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_qwen2_vl.py, modeling_qwen2_5_vl.py)."""
    source = "visual.blocks.{layer}."
    blocks = _block_rules(
        norms=(source + "norm1", source + "norm2"),
        qkv=(source + "attn.qkv",),
        output=source + "attn.proj",
        up=tuple(source + name for name in up),
        down=source + down,
        norm_bias=norm_bias,
    )
    return (
        WeightRule("vision.patches.weight", ("visual.patch_embed.proj.weight",)),
        *of_layers(blocks, num_layers),
        *linear_rules("vision.merger.norm", ("visual.merger.ln_q",), norm_bias),
        *linear_rules("vision.merger.up", ("visual.merger.mlp.0",)),
        *linear_rules("vision.merger.down", ("visual.merger.mlp.2",)),
    )


def _gguf_rules(num_layers: int, up: tuple[str, ...], *, norm_bias: bool) -> tuple[WeightRule, ...]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, conversion/qwenvl.py)."""
    source = "v.blk.{layer}."
    blocks = _block_rules(
        norms=(source + "ln1", source + "ln2"),
        qkv=tuple(source + name for name in ("attn_q", "attn_k", "attn_v")),
        output=source + "attn_out",
        up=tuple(source + name for name in up),
        down=source + "ffn_down",
        norm_bias=norm_bias,
    )
    return (
        WeightRule("vision.patches.weight", ("v.patch_embd.weight", "v.patch_embd.weight.1")),
        *of_layers(blocks, num_layers),
        *linear_rules("vision.merger.norm", ("v.post_ln",), norm_bias),
        *linear_rules("vision.merger.up", ("mm.0",)),
        *linear_rules("vision.merger.down", ("mm.2",)),
    )


def _block_rules(
    norms: tuple[str, str],
    qkv: tuple[str, ...],
    output: str,
    up: tuple[str, ...],
    down: str,
    *,
    norm_bias: bool,
) -> list[WeightRule]:
    block = "vision.blocks.{layer}."
    return [
        *linear_rules(block + "attention_norm", norms[:1], norm_bias),
        *linear_rules(block + "qkv", qkv),
        *linear_rules(block + "output", (output,)),
        *linear_rules(block + "mlp_norm", norms[1:], norm_bias),
        *linear_rules(block + ("gate_up" if len(up) > 1 else "up"), up),
        *linear_rules(block + "down", (down,)),
    ]
