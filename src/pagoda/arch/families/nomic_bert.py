"""Nomic's BERT (arXiv 2402.01613; nomic-embed-text): an encoder whose positions turn and whose
feed-forward part is gated."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.families.encoders import (
    attention_of,
    encoder_activation,
    gguf_pooling,
    gguf_rules,
    token_types,
)
from pagoda.arch.names import linear_rules
from pagoda.arch.read import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Reader,
    checkpoint_dtype,
    config_reader,
)
from pagoda.arch.spec import (
    LayerSpec,
    MlpSpec,
    ModelSpec,
    PoolingSpec,
    RopeSpec,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

_NAME = "NomicBertModel"
_THETA = 1000.0
_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}
# What Nomic's own code has other names for.
_OLD = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
_TRAINED = 2048


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    """By transformers' fields, or by those of Nomic's own code."""
    reader = config_reader(_renamed(config) if "n_embd" in config else config)
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    theta = reader.number("rotary_emb_base", _THETA, above=1.0)
    section = reader.section("rope_parameters")
    if section is not None:
        if section.text("rope_type", "default") != "default":
            raise UnsupportedModelError(
                f"config.json: rope_type is {section.raw('rope_type')!r}; no published Nomic BERT "
                "stretches its positions, and this program's does not."
            )
        theta = section.number("rope_theta", theta, above=1.0)
    attention = attention_of(
        hidden, heads, RopeSpec(theta, hidden // heads), bias=False, reader=reader
    )
    mlp = MlpSpec(
        reader.integer("intermediate_size", MAX_WIDTH),
        encoder_activation(reader, "hidden_act", "silu"),
    )
    count = reader.integer("num_hidden_layers", MAX_LAYERS)
    return ModelSpec(
        architecture=_NAME,
        vocab_size=reader.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        layers=(LayerSpec(attention, mlp, norms="sums"),) * count,
        norm_eps=reader.number("layer_norm_eps", 1e-12, below=1.0),
        tie_word_embeddings=True,
        max_position=reader.integer("max_position_embeddings", MAX_CONTEXT, _TRAINED),
        dtype=checkpoint_dtype(reader, "float32"),
        weights=_rules(),
        encoder=EncoderSpec(num_token_types=reader.integer("type_vocab_size", MAX_VOCAB, 2)),
        writes_text=False,
        pooling=PoolingSpec("mean"),
    )


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Nomic's own code under transformers' names."""
    expected = {
        "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
    }  # fmt: skip
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise UnsupportedModelError(
                f"config.json: {name} is {config[name]!r}; a Nomic BERT has {value!r} here. Take "
                "nomic-embed-text v1 or v1.5."
            )
    if config.get("moe_every_n_layers"):
        raise UnsupportedModelError(
            "config.json asks for a mixture of experts (nomic-embed-text v2); encoders have none "
            "here. Take nomic-embed-text v1.5."
        )
    kind = config.get("activation_function", "swiglu")
    # The table of positions is as long as contexts may be if stretched; trained was this many.
    trained = config.get("max_trained_positions") or _TRAINED
    renamed = {_OLD.get(name, name): value for name, value in config.items()}
    return renamed | {
        "hidden_act": _ACTIVATIONS.get(kind, kind),
        "max_position_embeddings": trained,
    }


def _rules() -> tuple[WeightRule, ...]:
    """Names as Nomic's own code has them, and transformers writes them."""
    source, layer = "encoder.layers.{layer}.", "layers.{layer}."
    return (
        WeightRule("embed.weight", ("embeddings.word_embeddings.weight",)),
        WeightRule("types.weight", ("embeddings.token_type_embeddings.weight",)),
        *linear_rules("embed_norm", ("emb_ln",)),
        *linear_rules(layer + "attention.qkv", (source + "attn.Wqkv",), False),
        *linear_rules(layer + "attention.output", (source + "attn.out_proj",), False),
        *linear_rules(layer + "attention_norm", (source + "norm1",)),
        *linear_rules(layer + "mlp.gate_up", (source + "mlp.fc12", source + "mlp.fc11"), False),
        *linear_rules(layer + "mlp.down", (source + "mlp.fc2",), False),
        *linear_rules(layer + "mlp_norm", (source + "norm2",)),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "nomic-bert.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    heads = reader.integer("attention.head_count", MAX_HEADS)
    rope = RopeSpec(reader.number("rope.freq_base", _THETA, above=1.0), hidden // heads)
    attention = attention_of(hidden, heads, rope, bias=False, reader=reader)
    mlp = MlpSpec(reader.integer("feed_forward_length", MAX_WIDTH))
    count = reader.integer("block_count", MAX_LAYERS)
    return ModelSpec(
        architecture=_NAME,
        vocab_size=len(tokenizer.listed("tokens")),
        hidden_size=hidden,
        layers=(LayerSpec(attention, mlp, norms="sums"),) * count,
        norm_eps=reader.number("attention.layer_norm_epsilon", 1e-12, below=1.0),
        tie_word_embeddings=True,
        max_position=reader.integer("context_length", MAX_CONTEXT),
        dtype="float32",
        weights=gguf_rules(tensor_names, bias=False, tables=False, gate_up=("ffn_gate", "ffn_up")),
        encoder=EncoderSpec(num_token_types=token_types(tokenizer)),
        writes_text=False,
        pooling=gguf_pooling(reader, tensor_names, "mean"),
    )
