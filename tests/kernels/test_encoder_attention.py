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
OPS = [("patch_attention", None), *(("encoder_attention", window) for window in WINDOWS)]


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


def cpu_ops(isa: str, threads: int):
    from pagoda.kernels.cpu.ops import CpuOps

    return CpuOps(native.Native(threads, isa))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_the_reference(heads: int, dim: int, window: int | None):
    q, k, v = inputs(heads, dim)
    found = encoder_attention(q, k, v, STARTS, scale=dim**-0.5, window=window)
    expected = reference(q, k, v, dim**-0.5, window)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
@pytest.mark.parametrize(("name", "window"), OPS)
def test_native(name: str, isa: str, threads: int, heads: int, dim: int, window: int | None):
    op = getattr(cpu_ops(isa, threads), name)
    q, k, v = inputs(heads, dim)
    how = {"scale": dim**-0.5} if window is None else {"scale": dim**-0.5, "window": window}
    found = op(q, k, v, STARTS, **how)
    expected = reference(q, k, v, **how)
    # Few keys share the weight, so that less of a logit's rounding averages out.
    bound = 1e-5 if window is None else 2e-5
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
    # A text alone has the same bits.
    begin, end = STARTS[4].item(), STARTS[5].item()
    alone = (x[begin:end] for x in (q, k, v))
    starts = torch.tensor([0, end - begin], dtype=torch.int32)
    torch.testing.assert_close(op(*alone, starts, **how), found[begin:end], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["encoder_attention", "patch_attention"])
@pytest.mark.parametrize("dim", [6, 7])
def test_heads_of_any_size(name: str, dim: int):
    q, k, v = inputs(3, dim)
    found = getattr(doors, name)(q, k, v, STARTS, scale=0.3)
    torch.testing.assert_close(found.double(), reference(q, k, v, 0.3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_patches_that_lie_head_by_head(isa: str):
    ops = cpu_ops(isa, 2)
    q, k, v = inputs(4, 16)
    lying = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
    expected = ops.patch_attention(q, k, v, STARTS, scale=0.25)
    assert torch.equal(ops.patch_attention(*lying, STARTS, scale=0.25), expected)


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_a_picture_that_is_not_finite(isa: str):
    """NaN in a head of one picture leaves the other pictures and heads as they are."""
    ops = cpu_ops(isa, 2)
    q, k, v = (torch.randn(70, 3, 8) for _ in range(3))
    starts = torch.tensor([0, 30, 70], dtype=torch.int32)
    clean = ops.patch_attention(q, k, v, starts, scale=0.5)
    k[40, 1, 2] = torch.nan
    found = ops.patch_attention(q, k, v, starts, scale=0.5)
    assert torch.equal(found[:30], clean[:30]) and clean.isfinite().all()
    assert found[30:, 1].isnan().all()
    assert torch.equal(found[30:, ::2], clean[30:, ::2])


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_weights_of_all_sizes(isa: str):
    """Scores far apart, and a highest one that comes last."""
    q, k, v = inputs(3, 16)
    k = k * torch.linspace(0, 6, len(k))[:, None, None]
    found = cpu_ops(isa, 1).patch_attention(q, k, v, STARTS, scale=4.0)
    torch.testing.assert_close(found.double(), reference(q, k, v, 4.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("starts", [[0, 5], [1, 8], [0, 6, 4, 8]])
def test_all_patches_are_in_runs(starts: list[int]):
    x = torch.zeros(8, 1, 4)
    with pytest.raises(ValueError, match="must rise from 0 to 8"):
        doors.patch_attention(x, x, x, torch.tensor(starts, dtype=torch.int32), scale=1.0)
