"""What only Gemma 3n computes: the reference and the native kernels against numpy, on odd sizes."""

import numpy as np
import pytest
import torch

from pagoda.kernels import cpu
from pagoda.kernels.ref import ops as reference

FORMS = ["reference"]
if cpu.native() is not None:
    from pagoda.kernels.cpu._native import INSTRUCTION_SETS, MAX_STREAMS, Native
    from pagoda.kernels.cpu.ops import CpuOps

    FORMS += INSTRUCTION_SETS
ROWS, SIZES = [0, 1, 5, 130], [1, 7, 16, 43, 256]


@pytest.fixture(params=FORMS)
def ops(request):
    torch.manual_seed(3)
    if request.param == "reference":
        return reference
    return CpuOps(Native(2, request.param))


def close(found: torch.Tensor, expected: np.ndarray) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def wide(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", SIZES)
def test_mix_streams(ops, rows, size):
    streams, added = list(torch.randn(4, rows, size)), list(torch.randn(3, rows, size))
    weights = torch.randn(rows, 12)
    kept = [x.clone() for x in (*streams, *added)]
    mixed = ops.mix_streams(weights, streams, added, plus=0.5)
    factors = wide(weights).reshape(rows, 4, 3) + 0.5
    for index, found in enumerate(mixed):
        sums = sum(factors[:, index, j, None] * wide(x) for j, x in enumerate(added))
        close(found, wide(streams[index]) + sums)
    assert all(torch.equal(x, y) for x, y in zip((*streams, *added), kept, strict=True))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", SIZES)
def test_scale_columns(ops, rows, size):
    x, weight = torch.randn(rows, size), torch.randn(size)
    close(ops.scale_columns(x, weight), wide(x) * wide(weight))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", SIZES)
def test_match_rms(ops, rows, size):
    x, like = torch.randn(rows, size), torch.randn(rows, size) * 3
    x[: rows // 2] *= 1e-4  # below the least
    own, wanted = (np.square(wide(each)).mean(-1, keepdims=True) for each in (x, like))
    close(ops.match_rms(x, like, 1e-5), wide(x) * np.sqrt(wanted / np.maximum(own, 1e-5)))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cut", [-0.5, 0.0, 1.645])
def test_cut_columns(ops, rows, size, cut):
    whole = torch.randn(rows, size + 9) + 2
    x, kept = whole[:, 4 : 4 + size], whole.clone()
    expected = wide(x)
    bound = expected.mean(-1, keepdims=True) + cut * expected.std(-1, keepdims=True)
    ops.cut_columns(x, cut)
    close(x, np.maximum(expected - bound, 0))
    assert torch.equal(whole[:, :4], kept[:, :4])
    assert torch.equal(whole[:, 4 + size :], kept[:, 4 + size :])


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
def test_more_streams_than_kernels_take_are_refused():
    streams = [torch.ones(2, 4)] * (MAX_STREAMS + 1)
    with pytest.raises(ValueError, match="at most 8 can be mixed"):
        CpuOps(cpu.native()).mix_streams(torch.ones(2, 9 * 9), streams, streams)
