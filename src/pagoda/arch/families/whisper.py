"""Whisper (arXiv 2212.04356): an encoder of sound, and a decoder whose layers attend to the text
and then to what was heard.

A request's first tokens are the encoder's outputs. Layers that attend to them keep their keys and
values, and layers that attend to the text begin behind them: chunks of so many tokens, of which the
text never fills the second. Each of the decoder's layers is two here, the second with the
feed-forward part.
"""

from collections.abc import Mapping
from typing import Any

from pagoda.arch.families.whisper_encoder import encoder_spec, keyless_rules
from pagoda.arch.names import linear_rules
from pagoda.arch.read import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Reader,
    checkpoint_dtype,
)
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, WeightRule

_DECODER = "model.decoder."


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    reader = Reader(config, "config.json")
    audio = encoder_spec(reader, "model.encoder.")
    hidden = audio.hidden_size
    layers = reader.integer("decoder_layers", MAX_LAYERS)
    text = reader.integer("max_target_positions", MAX_CONTEXT, 448)
    if text > audio.num_positions:
        raise reader.error(
            "max_target_positions",
            f"is {text}, more than the {audio.num_positions} of max_source_positions",
        )
    if not reader.flag("tie_word_embeddings", True):
        raise reader.error("tie_word_embeddings", "must be true, as published")
    bos = reader.token_ids("bos_token_id")
    return ModelSpec(
        architecture="WhisperForConditionalGeneration",
        vocab_size=reader.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        layers=_layers(reader, hidden, audio.num_positions) * layers,
        norm_eps=audio.norm_eps,
        tie_word_embeddings=True,
        max_position=audio.num_positions + text,
        dtype=checkpoint_dtype(reader, "float32"),
        weights=tuple(_rules(layers)),
        ignored_weights=("proj_out.weight",),
        eos_token_ids=reader.token_ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        audio=audio,
    )


def _layers(reader: Reader, hidden: int, heard: int) -> tuple[LayerSpec, LayerSpec]:
    heads = reader.integer("decoder_attention_heads", MAX_HEADS)
    if hidden % heads:
        raise reader.error("d_model", f"is {hidden}, which {heads} heads cannot share equally")
    common: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "scale": (hidden // heads) ** -0.5,
        "rope": None,
        "qkv_bias": True,
        "key_bias": False,
        "output_bias": True,
    }
    width = reader.integer("decoder_ffn_dim", MAX_WIDTH)
    mlp = MlpSpec(width, activation="gelu", bias=True, gated=False)
    text = AttentionSpec(kind="sliding", window=heard, chunked=True, **common)
    return LayerSpec(text, None), LayerSpec(AttentionSpec(kind="full", heard=heard, **common), mlp)


def _rules(num_layers: int) -> list[WeightRule]:
    """Names as transformers writes them (modeling_whisper.py)."""
    rules = [
        WeightRule("embed.weight", (_DECODER + "embed_tokens.weight",)),
        WeightRule("positions.weight", (_DECODER + "embed_positions.weight",)),
        *linear_rules("norm", (_DECODER + "layer_norm",)),
    ]
    for index in range(num_layers):
        source = f"{_DECODER}layers.{index}."
        text, heard = f"layers.{2 * index}.", f"layers.{2 * index + 1}."
        across = source + "encoder_attn."
        rules += [
            *linear_rules(text + "attention_norm", (source + "self_attn_layer_norm",)),
            *keyless_rules(text + "attention.qkv", source + "self_attn."),
            *linear_rules(text + "attention.output", (source + "self_attn.out_proj",)),
            *linear_rules(heard + "attention_norm", (source + "encoder_attn_layer_norm",)),
            *linear_rules(heard + "attention.q", (across + "q_proj",)),
            WeightRule(
                heard + "attention.kv.weight", (across + "k_proj.weight", across + "v_proj.weight")
            ),
            WeightRule(heard + "attention.kv.bias", (across + "v_proj.bias",)),
            *linear_rules(heard + "attention.output", (across + "out_proj",)),
            *linear_rules(heard + "mlp_norm", (source + "final_layer_norm",)),
            *linear_rules(heard + "mlp.up", (source + "fc1",)),
            *linear_rules(heard + "mlp.down", (source + "fc2",)),
        ]
    return rules
