"""Whisper's encoder (arXiv 2212.04356), which other models have in front of a decoder."""

from dataclasses import replace

from pagoda.arch.hearing import AudioSpec
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import WeightRule
from pagoda.base.errors import UnsupportedModelError

FRAMES_PER_SECOND = 100
WINDOW_SECONDS = 30


def encoder_spec(reader: Reader, source: str) -> AudioSpec:
    """By `d_model`, `encoder_layers`, ... of a config.json; names of tensors begin with
    `source`."""
    if reader.text("activation_function", "gelu") != "gelu":
        raise reader.error("activation_function", "must be gelu, which is what is known here")
    if reader.flag("scale_embedding", False):
        raise UnsupportedModelError(
            "config.json: scale_embedding is true, and embeddings are not scaled here; take a "
            "published checkpoint."
        )
    hidden = reader.integer("d_model", MAX_WIDTH)
    heads = reader.integer("encoder_attention_heads", MAX_HEADS)
    if hidden % heads:
        raise reader.error("d_model", f"is {hidden}, which {heads} heads cannot share equally")
    layers = reader.integer("encoder_layers", MAX_LAYERS)
    return AudioSpec(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=reader.integer("encoder_ffn_dim", MAX_WIDTH),
        activation="gelu",
        num_mels=reader.integer("num_mel_bins", MAX_WIDTH, 80),
        num_positions=reader.integer("max_source_positions", MAX_CONTEXT, 1500),
        weights=tuple(_rules(layers, source)),
    )


def _rules(num_layers: int, source: str) -> list[WeightRule]:
    """Names as transformers writes them (modeling_whisper.py, modeling_qwen2_audio.py)."""
    block = block_rules("audio.blocks.{layer}.", source + "layers.{layer}.")
    return [
        *linear_rules("audio.first", (source + "conv1",)),
        *linear_rules("audio.second", (source + "conv2",)),
        WeightRule("audio.positions.weight", (source + "embed_positions.weight",)),
        *(replace(rule, layers=tuple(range(num_layers))) for rule in block),
        *linear_rules("audio.norm", (source + "layer_norm",)),
    ]


def block_rules(param: str, source: str) -> list[WeightRule]:
    """Rules for self-attention and feed-forward part of a layer; keys have no bias."""
    attention = source + "self_attn."
    return [
        *linear_rules(param + "attention_norm", (source + "self_attn_layer_norm",)),
        *keyless_rules(param + "qkv", attention),
        *linear_rules(param + "output", (attention + "out_proj",)),
        *linear_rules(param + "mlp_norm", (source + "final_layer_norm",)),
        *linear_rules(param + "up", (source + "fc1",)),
        *linear_rules(param + "down", (source + "fc2",)),
    ]


def keyless_rules(param: str, source: str) -> list[WeightRule]:
    """Rules for q, k and v, of which k has no bias."""
    names = [f"{source}{each}_proj" for each in "qkv"]
    return [
        WeightRule(param + ".weight", tuple(name + ".weight" for name in names)),
        WeightRule(param + ".bias", (names[0] + ".bias", names[2] + ".bias")),
    ]
