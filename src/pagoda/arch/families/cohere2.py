"""Command R7B and Command A (arXiv 2504.00698): attention and feed-forward part stand side by side,
behind one norm; three layers with a window to one without, whose queries and keys are not
rotated."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.qwen2 import layer_windows
from pagoda.arch.names import Traits, with_pairs_side_by_side
from pagoda.arch.read import MAX_CONTEXT, MAX_LAYERS, Reader, config_reader
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError

_NAME = "Cohere2ForCausalLM"
_INTERVAL = 4
"""Every so many-th layer has no window, where a file does not say."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # As Cohere2Config, whose norms are of another kind than most.
    reader = config_reader(
        {
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            **config,
            "use_sliding_window": True,
            "rms_norm_eps": config.get("layer_norm_eps", 1e-5),
        }
    )
    if reader.raw("use_qk_norm"):
        raise UnsupportedModelError(
            "config.json asks for use_qk_norm, with which no Command R7B or A was published; "
            "models without it are supported."
        )
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    windows = layer_windows(reader)
    if not reader.has("layer_types"):
        every = reader.integer("sliding_window_pattern", MAX_LAYERS, _INTERVAL)
        window = reader.integer("sliding_window", MAX_CONTEXT)
        windows = _all_but_every(every, window, num_layers)
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias)
    spec = spec_from_config(reader, _NAME, traits, windows, _unrotated(windows))
    size = spec.attentions[0].head_dim
    rules = with_pairs_side_by_side(spec.weights, size, _rotary_dim(spec))
    return _side_by_side(replace(spec, weights=rules), reader.number("logit_scale", 0.0625))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    prefix = "cohere2."
    eps = metadata.get(prefix + "attention.layer_norm_epsilon")
    metadata = {**metadata, prefix + "attention.layer_norm_rms_epsilon": eps}
    reader = Reader(metadata, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    window = reader.integer("attention.sliding_window", MAX_CONTEXT)
    num_layers = reader.integer("block_count", MAX_LAYERS)
    every = reader.integer("attention.sliding_window_pattern", MAX_LAYERS, _INTERVAL)
    windows = _all_but_every(every, window, num_layers)
    spec = spec_from_gguf(
        reader,
        tokenizer,
        _NAME,
        Traits(),
        tensor_names,
        interleaved=True,
        windows=windows,
        unrotated=_unrotated(windows),
    )
    return _side_by_side(spec, reader.number("logit_scale"))


def _all_but_every(every: int, window: int, num_layers: int) -> tuple[int | None, ...]:
    return tuple(window if (layer + 1) % every else None for layer in range(num_layers))


def _unrotated(windows: tuple[int | None, ...]) -> list[int]:
    return [layer for layer, window in enumerate(windows) if window is None]


def _rotary_dim(spec: ModelSpec) -> int:
    ropes = [mixer.rope for mixer in spec.attentions if mixer.rope is not None]
    return ropes[0].rotary_dim if ropes else spec.attentions[0].head_dim


def _side_by_side(spec: ModelSpec, logit_scale: float) -> ModelSpec:
    layers = tuple(replace(layer, norms="shared") for layer in spec.layers)
    weights = tuple(rule for rule in spec.weights if ".mlp_norm." not in rule.param)
    return replace(spec, layers=layers, weights=weights, logit_scale=logit_scale)
