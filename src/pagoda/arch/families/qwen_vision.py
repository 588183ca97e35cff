"""The vision transformer of Qwen3-VL and Qwen3.5 (arXiv 2511.21631), and what Qwen2-VL's shares
with it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import Activation, AttentionSpec, LayerSpec, RopeSpec, WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

_ACTIVATIONS: dict[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
MAX_PATCH = 256
# modeling_qwen3_vl.py: constants of the architecture, not in config.json.
ROPE_THETA = 10000.0
NORM_EPS = 1e-6
_MERGER = {"norm": "norm", "fc1": "up", "fc2": "down"}


def vision_from_config(config: Mapping[str, Any], out_size: int) -> VisionSpec:
    """`vision_config` of a config.json; `out_size` is the language model's width."""
    reader = vision_section(config)
    if reader.integer("out_hidden_size", MAX_WIDTH) != out_size:
        raise reader.error("out_hidden_size", f"must be the language model's {out_size}")
    activation = reader.text("hidden_act", "gelu_pytorch_tanh")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json asks for the vision activation {activation!r}; known are "
            f"{' and '.join(_ACTIVATIONS)}."
        )
    layers = reader.integer("depth", MAX_LAYERS)
    found = reader.listed("deepstack_visual_indexes")
    deepstack = reader.integers("deepstack_visual_indexes", len(found), layers - 1) if found else ()
    spec = VisionSpec(
        hidden_size=reader.integer("hidden_size", MAX_WIDTH),
        num_layers=layers,
        num_heads=reader.integer("num_heads", MAX_HEADS),
        intermediate_size=reader.integer("intermediate_size", MAX_WIDTH),
        activation=_ACTIVATIONS[activation],
        patch_size=reader.integer("patch_size", MAX_PATCH, 16),
        temporal_patch=reader.integer("temporal_patch_size", MAX_PATCH, 2),
        merge=reader.integer("spatial_merge_size", MAX_PATCH, 2),
        num_positions=reader.integer("num_position_embeddings", MAX_WIDTH),
        rope_theta=ROPE_THETA,
        norm_eps=NORM_EPS,
        weights=_rules("model.visual.", layers, len(deepstack)),
        deepstack=deepstack,
    )
    check_heads(reader, "hidden_size", spec)
    if isqrt(spec.num_positions) ** 2 != spec.num_positions:
        raise reader.error("num_position_embeddings", "must be a square")
    return spec


def vision_section(config: Mapping[str, Any]) -> Reader:
    """A reader of `vision_config`; CheckpointError where it is missing."""
    section = config.get("vision_config")
    if not isinstance(section, Mapping):
        raise CheckpointError(
            "config.json: vision_config is missing. The file is damaged or not meant for this "
            "program; fetch it again."
        )
    return Reader(section, "config.json: vision_config")


def vision_from_gguf(metadata: Mapping[str, Any], out_size: int) -> VisionSpec:
    """`clip.*` of the file with the tower."""
    clip = Reader(metadata, "GGUF metadata", "clip.")
    kind = clip.text("projector_type")
    if kind != "qwen3vl_merger":
        raise UnsupportedModelError(
            f"The vision tower is a {kind!r}, and this model's is a 'qwen3vl_merger'; give another "
            "file with --mmproj."
        )
    if not clip.flag("use_gelu", False):
        raise UnsupportedModelError("The vision tower has another activation than gelu.")
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    if reader.integer("projection_dim", MAX_WIDTH) != out_size:
        raise reader.error("projection_dim", f"must be the language model's {out_size}")
    layers = reader.integer("block_count", MAX_LAYERS)
    flags = reader.listed("is_deepstack_layers")
    deepstack = tuple(index for index, flag in enumerate(flags) if flag is True)
    patch = reader.integer("patch_size", MAX_PATCH)
    spec = VisionSpec(
        hidden_size=reader.integer("embedding_length", MAX_WIDTH),
        num_layers=layers,
        num_heads=reader.integer("attention.head_count", MAX_HEADS),
        intermediate_size=reader.integer("feed_forward_length", MAX_WIDTH),
        activation="gelu_tanh",
        patch_size=patch,
        temporal_patch=2,
        merge=reader.integer("spatial_merge_size", MAX_PATCH, 2),
        num_positions=(reader.integer("image_size", MAX_WIDTH) // patch) ** 2,
        rope_theta=ROPE_THETA,
        norm_eps=reader.number("attention.layer_norm_epsilon", NORM_EPS, below=1.0),
        weights=_gguf_rules(layers, deepstack),
        split_patches=True,
        deepstack=deepstack,
    )
    check_heads(reader, "embedding_length", spec)
    return spec


def check_heads(reader: Reader, name: str, spec: VisionSpec) -> None:
    """CheckpointError where heads cannot turn by two coordinates; `name` is the width's field."""
    if spec.hidden_size % (4 * spec.num_heads):
        raise reader.error(
            name,
            f"is {spec.hidden_size}, which {spec.num_heads} heads cannot share in multiples of 4",
        )


def config_sections(reader: Reader) -> tuple[Reader, str]:
    """Where a config.json deals out frequencies to coordinates."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    return section or reader, "mrope_section"


def layers_with_axes(
    layers: Iterable[LayerSpec], reader: Reader, name: str, *, in_turns: bool = True
) -> tuple[LayerSpec, ...]:
    """With `rope_axes` in those that attend."""
    changed = []
    for layer in layers:
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec) and mixer.rope is not None:
            mixer = replace(mixer, rope=rope_axes(reader, name, mixer.rope, in_turns=in_turns))
        changed.append(replace(layer, mixer=mixer))
    return tuple(changed)


def rope_axes(reader: Reader, name: str, rope: RopeSpec, *, in_turns: bool) -> RopeSpec:
    """`rope` with the coordinate of each frequency, as the sizes under `name` deal them out: in
    turns (time, row, column, time, ...) as long as each has some left, or in runs: first the
    frequencies of time, then those of rows, then of columns."""
    sizes = tuple(reader.listed(name)[:3])
    half = rope.rotary_dim // 2
    if (
        len(sizes) != 3
        or not all(type(size) is int and size >= 0 for size in sizes)
        or sum(sizes) != half
    ):
        raise reader.error(name, f"must be three sizes that add up to {half}, not {sizes}")
    if reader.flag("mrope_interleaved", in_turns) != in_turns:
        raise UnsupportedModelError(
            f"config.json says that mrope_interleaved is {str(not in_turns).lower()}, which no "
            "model of this architecture has."
        )
    if in_turns:
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
        *of_layers(blocks, num_layers),
        *merger,
        *of_layers(deeper, num_deepstack),
    )


def _gguf_rules(num_layers: int, deepstack: tuple[int, ...]) -> tuple[WeightRule, ...]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, conversion/qwen3vl.py)."""
    block, source = "vision.blocks.{layer}.", "v.blk.{layer}."
    blocks = (
        *linear_rules(block + "attention_norm", (source + "ln1",)),
        *linear_rules(block + "qkv", (source + "attn_qkv",)),
        *linear_rules(block + "output", (source + "attn_out",)),
        *linear_rules(block + "mlp_norm", (source + "ln2",)),
        *linear_rules(block + "up", (source + "ffn_up",)),
        *linear_rules(block + "down", (source + "ffn_down",)),
    )
    deeper = [
        rule
        for index, layer in enumerate(deepstack)
        for part in ("norm", "fc1", "fc2")
        for rule in linear_rules(
            f"vision.deepstack.{index}.{_MERGER[part]}", (f"v.deepstack.{layer}.{part}",)
        )
    ]
    return (
        WeightRule("vision.patches.weight", ("v.patch_embd.weight", "v.patch_embd.weight.1")),
        WeightRule("vision.patches.bias", ("v.patch_embd.bias",)),
        WeightRule("vision.positions.weight", ("v.position_embd.weight",)),
        *of_layers(blocks, num_layers),
        *linear_rules("vision.merger.norm", ("v.post_ln",)),
        *linear_rules("vision.merger.up", ("mm.0",)),
        *linear_rules("vision.merger.down", ("mm.2",)),
        *deeper,
    )


def _merger(param: str, source: str) -> list[WeightRule]:
    return [
        *linear_rules(param + "norm", (source + "norm",)),
        *linear_rules(param + "up", (source + "linear_fc1",)),
        *linear_rules(param + "down", (source + "linear_fc2",)),
    ]


def of_layers(rules: Iterable[WeightRule], count: int) -> list[WeightRule]:
    """Rules of the tower's own layers."""
    return [replace(rule, layers=tuple(range(count))) for rule in rules]
