"""Attention both ways over a ragged batch, against plain mathematics in fp64."""

import pytest
import torch

from pagoda.kernels import ops as doors
from pagoda.kernels.ref.encoder import encoder_attention

native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)

LENGTHS = (1, 17, 64, 3, 130, 0, 256, 5)
SHAPES = [(12, 32), (4, 64), (3, 6), (2, 80)]
WINDOWS = (None, 1, 9, 65)


def reference(q, k, v, scale: float, window: int | None = None) -> torch.Tensor:
    parts = []
    for x in zip(*(x.double().split(LENGTHS) for x in (q, k, v)), strict=True):
        queries, keys, values = (part.transpose(0, 1) for part in x)
        logits = queries @ keys.transpose(1, 2) * scale
        if window is not None:
            seen = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1 - window).tril(window - 1)
            logits = logits.masked_fill(~seen, -torch.inf)
        weights = torch.softmax(logits, dim=-1)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


def inputs(heads: int, dim: int) -> tuple[torch.Tensor, ...]:
    """Views of one projection, as a layer has them."""
    torch.manual_seed(heads)
    return (torch.randn(sum(LENGTHS), 3, heads, dim) * 2).unbind(1)


STARTS = torch.tensor((0, *LENGTHS)).cumsum(0).int()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_the_reference(heads: int, dim: int, window: int | None):
    q, k, v = inputs(heads, dim)
    found = encoder_attention(q, k, v, STARTS, scale=dim**-0.5, window=window)
    expected = reference(q, k, v, dim**-0.5, window)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_native(isa: str, threads: int, heads: int, dim: int, window: int | None):
    from pagoda.kernels.cpu.ops import CpuOps

    ops = CpuOps(native.Native(threads, isa))
    q, k, v = inputs(heads, dim)
    how = {"scale": dim**-0.5, "window": window}
    found = ops.encoder_attention(q, k, v, STARTS, **how)
    expected = reference(q, k, v, **how)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    # A text alone has the same bits.
    begin, end = STARTS[4].item(), STARTS[5].item()
    alone = (x[begin:end] for x in (q, k, v))
    starts = torch.tensor([0, end - begin], dtype=torch.int32)
    torch.testing.assert_close(
        ops.encoder_attention(*alone, starts, **how), found[begin:end], rtol=0, atol=0
    )


@pytest.mark.parametrize("dim", [6, 7])
def test_heads_of_any_size(dim: int):
    q, k, v = inputs(3, dim)
    found = doors.encoder_attention(q, k, v, STARTS, scale=0.3)
    torch.testing.assert_close(found.double(), reference(q, k, v, 0.3), rtol=1e-5, atol=1e-5)
