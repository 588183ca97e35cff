"""OLMo 2 and 3 (arXiv 2501.00656, allenai.org/olmo): norms stand behind attention and feed-forward
part, and q and k are normalized over all heads; in OLMo 3 three layers with a window to one
without, which alone has its context stretched by YaRN."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.rope import rope_from_config
from pagoda.arch.spec import AttentionSpec, ModelSpec, RopeSpec

_INTERVAL = 4
"""Every so many-th layer of OLMo 3 has no window."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = config_reader({"rms_norm_eps": 1e-5, **config})
    return _from_config(reader, "Olmo2ForCausalLM")


def olmo3_from_config(config: Mapping[str, Any]) -> ModelSpec:
    ropes = config.get("rope_parameters")
    full = ropes.get("full_attention", ropes) if isinstance(ropes, Mapping) else None
    local = ropes.get("sliding_attention") if isinstance(ropes, Mapping) else None
    # As Olmo3Config.
    values = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096, **config}
    reader = config_reader({**values, "rope_parameters": full, "use_sliding_window": True})
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    windows = layer_windows(reader)
    if not reader.has("layer_types"):
        window = reader.integer("sliding_window", MAX_CONTEXT)
        windows = _three_of_four(window, num_layers)
    spec = _from_config(reader, "Olmo3ForCausalLM", windows)
    local_reader = config_reader({**values, "rope_parameters": local, "rope_scaling": None})
    max_position = reader.integer("max_position_embeddings", MAX_CONTEXT)
    head_dim = spec.attentions[0].head_dim
    return _with_local_rope(spec, rope_from_config(local_reader, head_dim, max_position))


def _from_config(
    reader: Reader, architecture: str, windows: tuple[int | None, ...] = ()
) -> ModelSpec:
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    spec = spec_from_config(reader, architecture, traits, windows)
    layer = "model.layers.{layer}.post_"
    return _normed_behind(spec, layer + "attention_layernorm", layer + "feedforward_layernorm")


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "olmo2.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    num_layers = reader.integer("block_count", MAX_LAYERS)
    windows: tuple[int | None, ...] = ()
    window = reader.integer("attention.sliding_window", MAX_CONTEXT, 0, minimum=0)
    if window:
        windows = _gguf_windows(reader, window, num_layers)
    name = "Olmo3ForCausalLM" if window else "Olmo2ForCausalLM"
    traits = Traits(qk_norm=True)
    spec = spec_from_gguf(reader, tokenizer, name, traits, tensor_names, windows=windows)
    spec = _normed_behind(spec, "blk.{layer}.post_attention_norm", "blk.{layer}.post_ffw_norm")
    rope = next(mixer.rope for mixer in spec.attentions)
    assert rope is not None
    theta = reader.number("rope.freq_base_swa", rope.theta, above=1.0)
    return _with_local_rope(spec, RopeSpec(theta, rope.rotary_dim))


def _gguf_windows(reader: Reader, window: int, num_layers: int) -> tuple[int | None, ...]:
    pattern = reader.listed("attention.sliding_window_pattern")
    if not pattern:
        return _three_of_four(window, num_layers)
    if [type(local) for local in pattern] != [bool] * num_layers:
        raise reader.error(
            "attention.sliding_window_pattern",
            f"must say true or false for each of {num_layers} layers",
        )
    return tuple(window if local else None for local in pattern)


def _three_of_four(window: int, num_layers: int) -> tuple[int | None, ...]:
    return tuple(window if (layer + 1) % _INTERVAL else None for layer in range(num_layers))


def _normed_behind(spec: ModelSpec, attention: str, feed_forward: str) -> ModelSpec:
    """With norms of these names behind both parts of a layer."""
    moved = {
        "layers.{layer}.attention_norm.weight": ("attention_result_norm", attention),
        "layers.{layer}.mlp_norm.weight": ("result_norm", feed_forward),
    }
    weights = []
    for rule in spec.weights:
        if rule.param in moved:
            name, source = moved[rule.param]
            param = f"layers.{{layer}}.{name}.weight"
            rule = replace(rule, param=param, sources=(source + ".weight",))
        weights.append(rule)
    layers = tuple(
        replace(layer, norms="after", mixer=replace(layer.mixer, qk_norm_whole=True))
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec)
    )
    return replace(spec, layers=layers, weights=tuple(weights))


def _with_local_rope(spec: ModelSpec, rope: RopeSpec) -> ModelSpec:
    """Layers with a window turn by a rule of their own."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, rope=rope))
        if isinstance(layer.mixer, AttentionSpec) and layer.mixer.window is not None
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)
