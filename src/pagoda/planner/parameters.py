"""How many parameters a model has, by its sizes alone."""

from pagoda.arch.spec import (
    AttentionSpec,
    DeltaNetSpec,
    EncoderSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    VisionSpec,
)


def parameter_count(spec: ModelSpec) -> int:
    """Of the whole model, norms and biases included."""
    hidden = spec.hidden_size
    total = spec.vocab_size * hidden * (1 if spec.tie_word_embeddings else 2)
    total += hidden + sum(_layer(layer, hidden) for layer in spec.layers)
    if spec.encoder is not None:
        total += _encoder(spec, spec.encoder)
    elif spec.pooling.answers is None:
        total += hidden * len(spec.pooling.labels)
    return total + (0 if spec.vision is None else _vision(spec.vision, hidden))


def _layer(layer: LayerSpec, hidden: int) -> int:
    mixer = layer.mixer
    total = 2 * hidden
    if isinstance(mixer, AttentionSpec):
        total += _attention(mixer, hidden)
    else:
        total += _delta_net(mixer, hidden)
    total += 0 if layer.mlp is None else _mlp(layer.mlp, hidden)
    return total + (0 if layer.experts is None else _experts(layer.experts, hidden))


def _attention(spec: AttentionSpec, hidden: int) -> int:
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    total = hidden * (q + 2 * kv) + q * hidden * (2 if spec.output_gate else 1)
    return (
        total
        + (q + 2 * kv) * spec.qkv_bias
        + hidden * spec.output_bias
        + (2 * spec.head_dim * spec.qk_norm)
        + spec.num_heads * spec.sinks
    )


def _delta_net(spec: DeltaNetSpec, hidden: int) -> int:
    keys = spec.num_key_heads * spec.key_head_dim
    values = spec.num_value_heads * spec.value_head_dim
    # q, k, v with their convolution; z and the output; a decay and a rate for each value head.
    total = (2 * keys + values) * (hidden + spec.conv_width) + 2 * values * hidden
    return total + spec.num_value_heads * (2 * hidden + 2) + spec.value_head_dim


def _mlp(spec: MlpSpec, hidden: int) -> int:
    wide = (2 if spec.gated else 1) * spec.intermediate_size
    return hidden * (wide + spec.intermediate_size) + (wide + hidden) * spec.bias


def _experts(spec: MoeSpec, hidden: int) -> int:
    one = 3 * hidden * spec.intermediate_size
    one += (2 * spec.intermediate_size + hidden) * spec.bias
    total = spec.num_experts * (one + hidden + spec.bias)
    if spec.shared is None:
        return total
    return total + 3 * hidden * spec.shared.intermediate_size + hidden * spec.shared.gated


def _encoder(spec: ModelSpec, encoder: EncoderSpec) -> int:
    hidden = spec.hidden_size
    total = (encoder.num_positions + encoder.num_token_types) * hidden
    # Its norms have biases too: one behind the tables, two in each layer.
    total += hidden * (1 + 2 * len(spec.layers))
    labels = len(spec.pooling.labels)
    return total + (hidden + labels) * (hidden + 1) * bool(labels)


def _vision(spec: VisionSpec, out_size: int) -> int:
    """All of its layers have biases."""
    hidden, wide, merged = (
        spec.hidden_size,
        spec.intermediate_size,
        spec.hidden_size * spec.merge**2,
    )
    total = (spec.patch_values + 1 + spec.num_positions) * hidden
    block = 4 * hidden + (4 * hidden * hidden + 4 * hidden) + 2 * hidden * wide + wide + hidden
    merger = merged * (merged + 1) + (merged + 1) * out_size
    deepstack = len(spec.deepstack) * (merger + 2 * merged)
    return total + spec.num_layers * block + merger + 2 * hidden + deepstack
