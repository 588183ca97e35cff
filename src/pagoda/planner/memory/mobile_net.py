"""MobileNet-V5's parameters, and what it takes to encode a picture."""

from collections.abc import Iterator

from pagoda.arch.mobilenet import (
    MAX_SIDE,
    STEM_KERNEL,
    EdgeBlock,
    InvertedBlock,
    MobileNetSpec,
    QueryBlock,
)
from pagoda.arch.vision import VisionSpec
from pagoda.planner.memory.tensor import ModelTensor, linear, norm, rows_of


def mobile_net(spec: VisionSpec, out_size: int) -> Iterator[ModelTensor]:
    """The tower, and the embedder behind it."""
    assert spec.mobile_net is not None
    mobile, hidden = spec.mobile_net, spec.hidden_size
    yield from _product("vision.stem", mobile.stem, 3 * STEM_KERNEL**2, bias=True)
    yield from norm("vision.stem_norm", mobile.stem)
    for index, block in enumerate(block for stage in mobile.stages for block in stage):
        prefix = f"vision.blocks.{index}."
        if isinstance(block, EdgeBlock):
            columns = block.in_channels * block.kernel**2
            yield from _two_products(prefix, columns, block.inner, block.channels)
        elif isinstance(block, InvertedBlock):
            yield from _inverted(prefix, block)
        else:
            yield from _query(prefix, block)
    prefix = "vision.fusion."
    yield from _two_products(prefix, mobile.fused, mobile.inner, hidden)
    yield from norm(prefix + "token_norm", hidden)
    yield ModelTensor("vision.words.weight", (mobile.num_words, hidden), "table")
    yield from norm("vision.word_norm", hidden)
    yield from norm("vision.token_norm", hidden)
    yield from _product("vision.projection", out_size, hidden)


def picture_bytes(spec: MobileNetSpec, width: int) -> int:
    """Peak of encoding one picture of the largest; `width` is the bytes of one number.

    A block holds what it reads, what it makes, and what lies between its products, twice while that
    is normed. A GPU computes all rows of a picture at once; a CPU some of them, and needs less.
    """
    side = MAX_SIDE // 2
    most = 2 * MAX_SIDE**2 * 3 + side**2 * spec.stem * 3
    kept = 0
    for stage in spec.stages:
        for block in stage:
            made = -(-side // block.stride)
            numbers = side**2 * block.in_channels + made**2 * block.channels
            if isinstance(block, EdgeBlock):
                squares = block.in_channels * block.kernel**2
                numbers += made**2 * (squares + 2 * block.inner)
            elif isinstance(block, InvertedBlock):
                numbers += side**2 * block.inner * (3 if block.middle else 2)
            else:
                heads = block.num_heads * block.head_dim
                numbers += side**2 * (block.channels + 2 * heads)
            most = max(most, kept + numbers)
            side = made
        kept = side**2 * stage[-1].channels
    return most * max(width, 4)


def _inverted(prefix: str, block: InvertedBlock) -> Iterator[ModelTensor]:
    convolutions = (
        ("first", block.in_channels, block.first),
        ("middle", block.inner, block.middle),
    )
    for name, channels, kernel in convolutions:
        if kernel:
            yield _channel_conv(prefix + name, channels, kernel)
            yield from norm(f"{prefix}{name}_norm", channels)
    yield from _two_products(prefix, block.in_channels, block.inner, block.channels)
    yield from norm(prefix + "scale", block.channels)


def _query(prefix: str, block: QueryBlock) -> Iterator[ModelTensor]:
    heads = block.num_heads * block.head_dim
    yield from norm(prefix + "input_norm", block.channels)
    yield from _product(prefix + "query", heads, block.channels)
    for part in ("key.", "value."):
        if block.kv_stride > 1:
            yield _channel_conv(f"{prefix}{part}conv", block.channels, block.kernel)
            yield from norm(f"{prefix}{part}norm", block.channels)
        yield from _product(f"{prefix}{part}projection", block.head_dim, block.channels)
    yield from _product(prefix + "output", block.channels, heads)
    yield from norm(prefix + "scale", block.channels)


def _two_products(prefix: str, columns: int, inner: int, channels: int) -> Iterator[ModelTensor]:
    yield from _product(prefix + "up", inner, columns)
    yield from norm(prefix + "up_norm", inner)
    yield from _product(prefix + "down", channels, inner)
    yield from norm(prefix + "norm", channels)


def _product(name: str, rows: int, columns: int, *, bias: bool = False) -> Iterator[ModelTensor]:
    return linear(name, rows_of(rows), columns, bias, role="vision")


def _channel_conv(name: str, channels: int, kernel: int) -> ModelTensor:
    return ModelTensor(name + ".weight", (kernel, kernel, channels), "conv")
