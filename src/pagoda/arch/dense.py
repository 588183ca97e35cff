"""The parts that all dense decoders share: their sizes and layers."""

from collections.abc import Collection
from dataclasses import replace

from pagoda.arch.names import Traits, config_rules, gguf_rules, with_pairs_side_by_side
from pagoda.arch.read import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Reader,
    checkpoint_dtype,
)
from pagoda.arch.rope import rope_from_config, rope_from_gguf, scaled_max_position
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from pagoda.base.errors import UnsupportedModelError


def spec_from_config(
    reader: Reader,
    architecture: str,
    traits: Traits,
    windows: tuple[int | None, ...] = (),
    unrotated: Collection[int] = (),
) -> ModelSpec:
    """Read config.json; `windows` gives each layer's sliding window, if there are any, and
    `unrotated` the layers without rotary embedding."""
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    kv_heads = reader.integer("num_key_value_heads", MAX_HEADS, heads)
    head_dim = _head_dim(reader, "head_dim", "hidden_size", hidden, heads)
    max_position = reader.integer("max_position_embeddings", MAX_CONTEXT)
    rope = rope_from_config(reader, head_dim, max_position)
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(
            f"config.json asks for the activation {activation!r}; {architecture} has silu here."
        )
    _check_groups(reader, "num_key_value_heads", heads, kv_heads)
    widths = reader.integers("intermediate_size", num_layers, MAX_WIDTH)
    ropes = _ropes(rope, num_layers, unrotated)
    layers = tuple(
        _layer(heads, kv_heads, head_dim, ropes[i], widths[i], traits, window)
        for i, window in enumerate(windows or (None,) * num_layers)
    )
    tied = reader.flag("tie_word_embeddings", False)
    bos = reader.token_ids("bos_token_id")
    return ModelSpec(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        layers=layers,
        norm_eps=reader.number("rms_norm_eps", 1e-6, below=1.0),
        tie_word_embeddings=tied,
        max_position=scaled_max_position(max_position, rope.scaling),
        dtype=checkpoint_dtype(reader),
        weights=config_rules(traits, tied),
        # Old checkpoints carry the rotary frequencies, and tied ones may repeat the head.
        ignored_weights=("*.rotary_emb.inv_freq",) + (("lm_head.weight",) if tied else ()),
        eos_token_ids=reader.token_ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
    )


def spec_from_gguf(
    reader: Reader,
    tokenizer: Reader,
    architecture: str,
    traits: Traits,
    tensor_names: Collection[str],
    interleaved: bool = False,
    windows: tuple[int | None, ...] = (),
    unrotated: Collection[int] = (),
) -> ModelSpec:
    """Read GGUF metadata; `interleaved` says that q and k rows hold rotary pairs side by side,
    `windows` gives each layer's sliding window, if there are any, and `unrotated` the layers
    without rotary embedding."""
    num_layers = reader.integer("block_count", MAX_LAYERS)
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    heads = reader.integers("attention.head_count", num_layers, MAX_HEADS)
    kv_heads = reader.integers("attention.head_count_kv", num_layers, MAX_HEADS, list(heads))
    widths = reader.integers("feed_forward_length", num_layers, MAX_WIDTH)
    head_dim = _head_dim(reader, "attention.key_length", "embedding_length", hidden, heads[0])
    max_position = reader.integer("context_length", MAX_CONTEXT)
    rope = rope_from_gguf(reader, head_dim, max_position, tensor_names)
    _check_gguf_shape(reader, head_dim)
    for layer_heads, layer_kv_heads in zip(heads, kv_heads, strict=True):
        _check_groups(reader, "attention.head_count_kv", layer_heads, layer_kv_heads)
    # llama.cpp's converter can write one tensor of q, k and v for any architecture.
    traits = replace(traits, fused_qkv="blk.0.attn_qkv.weight" in tensor_names)
    ropes = _ropes(rope, num_layers, unrotated)
    layers = tuple(
        _layer(heads[i], kv_heads[i], head_dim, ropes[i], widths[i], traits, window)
        for i, window in enumerate(windows or (None,) * num_layers)
    )
    tied = "output.weight" not in tensor_names
    weights = gguf_rules(traits, tied)
    if interleaved:
        weights = with_pairs_side_by_side(weights, head_dim, rope.rotary_dim)
    bos = tokenizer.token_ids("bos_token_id")
    return ModelSpec(
        architecture=architecture,
        vocab_size=_gguf_vocab_size(reader, tokenizer),
        hidden_size=hidden,
        layers=layers,
        norm_eps=reader.number("attention.layer_norm_rms_epsilon", below=1.0),
        tie_word_embeddings=tied,
        max_position=scaled_max_position(max_position, rope.scaling),
        dtype="bfloat16",
        weights=weights,
        # Where rotary factors apply they are read through `RopeSpec.factors_tensor`; the others
        # are frequencies in files of 2023.
        ignored_weights=("rope_freqs.weight", "*.attn_rot_embd.weight"),
        eos_token_ids=tokenizer.token_ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
    )


def _ropes(rope: RopeSpec, num_layers: int, unrotated: Collection[int]) -> list[RopeSpec | None]:
    return [None if layer in unrotated else rope for layer in range(num_layers)]


def _layer(
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope: RopeSpec | None,
    width: int,
    traits: Traits,
    window: int | None,
) -> LayerSpec:
    attention = AttentionSpec(
        kind="full" if window is None else "sliding",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope,
        window=window,
        qkv_bias=traits.qkv_bias,
        output_bias=traits.output_bias,
        qk_norm=traits.qk_norm,
    )
    return LayerSpec(attention, MlpSpec(width, bias=traits.mlp_bias))


def _head_dim(reader: Reader, name: str, width_name: str, width: int, heads: int) -> int:
    if not reader.has(name) and width % heads:
        raise reader.error(width_name, f"is {width}, which {heads} heads cannot share equally")
    return reader.integer(name, MAX_WIDTH, max(width // heads, 1))


def _check_groups(reader: Reader, name: str, heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise reader.error(name, f"is {kv_heads}, which {heads} heads cannot share equally")


def _check_gguf_shape(reader: Reader, head_dim: int) -> None:
    value_dim = reader.integer("attention.value_length", MAX_WIDTH, head_dim)
    if value_dim != head_dim:
        raise reader.error("attention.value_length", f"is {value_dim}, but keys have {head_dim}")


def _gguf_vocab_size(reader: Reader, tokenizer: Reader) -> int:
    """llama.cpp sizes the embedding by the token list; `vocab_size` serves where none is."""
    tokens = tokenizer.raw("tokens")
    if tokens is None:
        return reader.integer("vocab_size", MAX_VOCAB)
    return len(tokenizer.texts("tokens"))
