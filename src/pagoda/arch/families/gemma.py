"""What Gemma 2, 3 and 4 share: scaled embeddings, layers with a window between global ones, norms
behind attention and feed-forward part too, and capped logits."""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec, WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError

LAYER = "layers.{layer}."
ACTIVATION = "gelu_pytorch_tanh"
# A layer's norms, by their parameters.
CONFIG_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_result_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "result_norm": "post_feedforward_layernorm",
}
GGUF_NORMS = {
    "attention_norm": "attn_norm",
    "attention_result_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "result_norm": "post_ffw_norm",
}

Windows = tuple[int | None, ...]
"""A layer's each; None sees all."""


def refuse_other_activations(reader: Reader, architecture: str) -> None:
    activation = reader.text("hidden_activation", ACTIVATION)
    if activation != ACTIVATION:
        raise UnsupportedModelError(
            f"config.json asks for the activation {activation!r}; {architecture} has {ACTIVATION} "
            "here."
        )


def refuse_encoders(reader: Reader, family: str) -> None:
    """`use_bidirectional_attention` may be of pictures alone."""
    both_ways = reader.raw("use_bidirectional_attention")
    if both_ways not in (None, False, "vision"):
        raise UnsupportedModelError(
            f"config.json: use_bidirectional_attention is {both_ways!r}. That is an encoder made "
            f"of {family}, which is not supported yet."
        )


def layer_kinds(reader: Reader, num_layers: int) -> tuple[str, ...]:
    """`layer_types`, checked."""
    kinds = reader.texts("layer_types")
    if len(kinds) != num_layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise reader.error(
            "layer_types",
            f"must name full_attention or sliding_attention for each of {num_layers} layers",
        )
    return kinds


def config_windows(reader: Reader, num_layers: int, period: int) -> Windows:
    """By `layer_types`; in older files every `period`-th layer is global, or as they say."""
    if reader.has("layer_types"):
        local = [kind == "sliding_attention" for kind in layer_kinds(reader, num_layers)]
    else:
        period = reader.integer("sliding_window_pattern", MAX_LAYERS, period)
        local = _alternating(num_layers, period)
    window = reader.integer("sliding_window", MAX_CONTEXT) if any(local) else None
    return tuple(window if own else None for own in local)


def gguf_windows(reader: Reader, num_layers: int, period: int, window: int) -> Windows:
    """By `attention.*`; `period` and `window` are llama.cpp's where the file is silent, and a
    window of 0 is none."""
    window = reader.integer("attention.sliding_window", MAX_CONTEXT, window, minimum=0)
    name = "attention.sliding_window_pattern"
    pattern = reader.raw(name)
    if isinstance(pattern, list):
        local = gguf_pattern(reader, num_layers)
    else:
        local = _alternating(num_layers, reader.integer(name, MAX_LAYERS, period))
    return tuple(window if own and window else None for own in local)


def gguf_pattern(reader: Reader, num_layers: int) -> list[bool]:
    """`attention.sliding_window_pattern`, where it says for each layer if it has a window."""
    pattern = reader.raw("attention.sliding_window_pattern")
    if not isinstance(pattern, list) or [type(x) for x in pattern] != [bool] * num_layers:
        raise reader.error(
            "attention.sliding_window_pattern",
            f"must say true or false for each of {num_layers} layers",
        )
    return pattern


def _alternating(num_layers: int, period: int) -> list[bool]:
    return [bool((layer + 1) % period) for layer in range(num_layers)]


def rope_section(reader: Reader, kind: str) -> Reader:
    """What `rope_parameters` says of the layers of one kind."""
    outer = reader.section("rope_parameters")
    section = None if outer is None else outer.section(kind)
    if section is None:
        raise reader.error("rope_parameters", f"must have a section {kind}")
    return section


def with_norms(rules: Iterable[WeightRule], sources: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """A dense decoder's rules, with these tensors for the norms of a layer."""
    own = {f"{LAYER}{name}.weight": source for name, source in sources.items()}
    kept = [rule for rule in rules if rule.param not in own]
    return (*kept, *(WeightRule(param, (source,)) for param, source in own.items()))


def config_norms(rules: Iterable[WeightRule], prefix: str) -> tuple[WeightRule, ...]:
    """With Gemma 2's and 3's norms, whose weights say by how much they differ from 1."""
    layer = prefix + LAYER
    sources = {name: f"{layer}{source}.weight" for name, source in CONFIG_NORMS.items()}
    return tuple(
        replace(rule, value="1 + x") if rule.param.endswith("norm.weight") else rule
        for rule in with_norms(rules, sources)
    )


def gguf_norms(rules: Iterable[WeightRule]) -> tuple[WeightRule, ...]:
    """Likewise of a GGUF: llama.cpp's converter adds the 1."""
    sources = {name: f"blk.{{layer}}.{source}.weight" for name, source in GGUF_NORMS.items()}
    return with_norms(rules, sources)


class Ropes(NamedTuple):
    wide: RopeSpec
    """That of global layers."""
    local: RopeSpec
    """That of layers with a window."""


def assembled(
    spec: ModelSpec,
    rules: tuple[WeightRule, ...],
    *,
    scale: float,
    ropes: Ropes,
    logit_cap: float | None,
    attention_cap: float | None = None,
) -> ModelSpec:
    """`spec`, a dense decoder's, as Gemma 2 or 3."""
    layers = []
    for layer in spec.layers:
        mixer, mlp = layer.mixer, layer.mlp
        assert isinstance(mixer, AttentionSpec) and isinstance(mlp, MlpSpec)
        rope = ropes.wide if mixer.window is None else ropes.local
        mixer = replace(mixer, scale=scale, rope=rope, logit_cap=attention_cap)
        layers.append(LayerSpec(mixer, replace(mlp, activation="gelu_tanh"), sandwiched=True))
    return replace(
        spec,
        layers=tuple(layers),
        weights=rules,
        embedding_scale=embedding_scale(spec),
        logit_cap=logit_cap,
    )


def seeing(spec: ModelSpec, architecture: str, vision: VisionSpec, *, wide: bool) -> ModelSpec:
    """`spec` with a tower; `wide`: pictures are seen both ways in global layers too, not only in
    those with a window."""
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, AttentionSpec)
        both_ways = vision.both_ways and (wide or layer.mixer.window is not None)
        layers.append(replace(layer, mixer=replace(layer.mixer, both_ways=both_ways)))
    return replace(spec, architecture=architecture, layers=tuple(layers), vision=vision)


def final_cap(reader: Reader) -> float | None:
    """The cap of the logits of tokens."""
    name = "final_logit_softcapping"
    return reader.number(name) if reader.has(name) else None


def embedding_scale(spec: ModelSpec) -> float:
    """The nearest number of the model's dtype to the root of its width: the models were trained
    with embeddings scaled by it."""
    x = math.sqrt(spec.hidden_size)
    if spec.dtype == "bfloat16":
        (bits,) = struct.unpack("<I", struct.pack("<f", x))
        (x,) = struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & ~0xFFFF))
    elif spec.dtype == "float16":
        (x,) = struct.unpack("<e", struct.pack("<e", x))
    return x
