"""Ops of a tower of convolutions, against loops."""

import pytest
import torch

from pagoda.kernels import ops
from pagoda.layers.convolution import around, reduced


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_kernels_of_channels(kernel: int, stride: int):
    torch.manual_seed(0)
    x, weight = torch.randn(9, 8, 5), torch.randn(kernel, kernel, 5)
    found = ops.channel_conv(x, weight, stride)
    for row, line in enumerate(found):
        for column, pixel in enumerate(line):
            top, left = row * stride, column * stride
            seen = x[top : top + kernel, left : left + kernel]
            torch.testing.assert_close(pixel, (seen * weight).sum((0, 1)), rtol=0, atol=1e-5)
    assert found.shape == ((9 - kernel) // stride + 1, (8 - kernel) // stride + 1, 5)


@pytest.mark.parametrize(("size", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 1), (3, 5, 2)])
def test_rows_of_a_convolution_see_what_all_of_it_sees(size: int, kernel: int, stride: int):
    torch.manual_seed(0)
    x, weight = torch.randn(size, size, 2), torch.randn(kernel, kernel, 2)
    count = reduced(size, stride)
    whole = ops.channel_conv(around(x, kernel, stride, slice(0, count)), weight, stride)
    assert whole.shape == (count, count, 2)
    for row in range(count):
        seen = around(x, kernel, stride, slice(row, row + 1))
        one = ops.channel_conv(seen, weight, stride)
        torch.testing.assert_close(one[0], whole[row], rtol=0, atol=1e-5)


def test_heads_share_keys_and_values():
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 3, 8), torch.randn(5, 8), torch.randn(5, 8)
    expected = torch.einsum("rhd,pd->rhp", q, k).mul(0.3).softmax(-1) @ v
    torch.testing.assert_close(ops.query_attention(q, k, v, 0.3), expected, rtol=0, atol=1e-5)
