"""Parameters of mixers that keep a state."""

from collections.abc import Iterator

from pagoda.arch.recurrent import DeltaNetSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec
from pagoda.planner.memory.tensor import ModelTensor, Part, linear, norm, rows_of


def recurrent(
    spec: RecurrentSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    """Those of the mixer whose layer's names begin with `prefix`."""
    if isinstance(spec, ShortConvSpec):
        yield from _short_conv(spec, hidden, prefix + "short_conv.", index)
    elif isinstance(spec, Mamba2Spec):
        yield from _mamba2(spec, hidden, prefix + "mamba2.", index)
    elif isinstance(spec, DeltaNetSpec):
        yield from _delta_net(spec, hidden, prefix + "delta_net.", index)


def _short_conv(
    spec: ShortConvSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    channels = Part(spec.channels, spec.channels)
    yield from linear(prefix + "input", (channels,) * 3, hidden, spec.bias, layer=index)
    shape = (spec.channels, spec.conv_width)
    yield ModelTensor(prefix + "conv.weight", shape, "conv", (channels,), layer=index)
    if spec.bias:
        yield ModelTensor(prefix + "conv.bias", shape[:1], "vector", (channels,), layer=index)
    yield from linear(
        prefix + "output", rows_of(hidden), spec.channels, spec.bias, column_units=spec.channels,
        layer=index,
    )  # fmt: skip


def _delta_net(
    spec: DeltaNetSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    keys = Part(spec.num_key_heads * spec.key_head_dim, spec.num_key_heads)
    values = Part(spec.num_value_heads * spec.value_head_dim, spec.num_value_heads)
    heads = Part(spec.num_value_heads, spec.num_value_heads)
    # q, k, v, the output gate, the writing strength and the decay.
    parts = (keys, keys, values, values, heads, heads)
    yield from linear(prefix + "input", parts, hidden, layer=index)
    channels = (keys, keys, values)
    width = (sum(part.rows for part in channels), spec.conv_width)
    yield ModelTensor(prefix + "conv.weight", width, "conv", channels, layer=index)
    for name in ("rate", "bias"):
        yield ModelTensor(f"{prefix}gates.{name}", (heads.rows,), "vector", (heads,), layer=index)
    yield from norm(prefix + "norm", spec.value_head_dim, layer=index)
    yield from linear(
        prefix + "output", rows_of(hidden), values.rows, column_units=values.units,
        column_runs=spec.num_value_heads // spec.num_key_heads if spec.tiled else 1, layer=index,
    )  # fmt: skip


def _mamba2(spec: Mamba2Spec, hidden: int, prefix: str, index: int | None) -> Iterator[ModelTensor]:
    inner = Part(spec.inner_size, spec.num_heads)
    shared = Part(spec.num_groups * spec.state_size, spec.num_groups)
    heads = Part(spec.num_heads, spec.num_heads)
    # The output gate, x, b, c and the step size.
    parts = (inner, inner, shared, shared, heads)
    yield from linear(prefix + "input", parts, hidden, spec.bias, layer=index)
    channels = (inner, shared, shared)
    shape = (sum(part.rows for part in channels), spec.conv_width)
    yield ModelTensor(prefix + "conv.weight", shape, "conv", channels, layer=index)
    if spec.conv_bias:
        yield ModelTensor(prefix + "conv.bias", shape[:1], "vector", channels, layer=index)
    for name in ("rate", "bias", "skip"):
        yield ModelTensor(f"{prefix}gates.{name}", (heads.rows,), "vector", (heads,), layer=index)
    yield ModelTensor(prefix + "norm.weight", (inner.rows,), "vector", (inner,), layer=index)
    yield from linear(
        prefix + "output", rows_of(hidden), inner.rows, spec.bias, column_units=inner.units,
        layer=index,
    )  # fmt: skip
