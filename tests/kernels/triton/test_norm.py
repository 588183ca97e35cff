"""Normalization in Triton against its reference."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref import delta_net
from pagoda.kernels.ref import norm as reference
from pagoda.kernels.triton import activation, norm
from tests.kernels.triton.forms import TOLERANCE, spread_rows

SHAPES = [(1, 1), (3, 43), (37, 64), (2, 5, 96), (2, 2500)]
EPS = 1e-5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rms_norm(shape, dtype, device):
    x = spread_rows(shape, dtype, device)
    weight = torch.randn(shape[-1], device=device)
    expected = reference.rms_norm(x, weight, EPS)
    torch.testing.assert_close(norm.rms_norm(x, weight, EPS), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_add_to(dtype, device):
    x, residual = spread_rows((5, 43), dtype, device), torch.randn(5, 43, device=device)
    found = activation.add_to(x, residual.clone())
    assert found.dtype == torch.float32
    assert torch.equal(found, x.float() + residual)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_norm_in_place(dtype, device):
    whole = spread_rows((5, 60), dtype, device)
    weight = torch.randn(43, device=device)
    expected = whole.clone()
    expected[:, 9:52] = reference.rms_norm(whole[:, 9:52], weight, EPS)
    norm.norm_in_place(whole[:, 9:52], weight, EPS)
    torch.testing.assert_close(whole, expected, **TOLERANCE[dtype])


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("wide", [True, False], ids=["fp32 sums", "narrow sums"])
def test_add_rms_norm(shape, dtype, wide, device):
    x = spread_rows(shape, dtype, device)
    residual = torch.randn(shape, device=device).to(torch.float32 if wide else dtype)
    weight = torch.randn(shape[-1], device=device)
    expected = reference.add_rms_norm(x, residual.clone(), weight, EPS)
    found = norm.add_rms_norm(x, residual.clone(), weight, EPS)
    torch.testing.assert_close(found[0], expected[0], **TOLERANCE[dtype])
    # The interpreter cuts off where a GPU rounds to bf16.
    torch.testing.assert_close(found[1], expected[1], rtol=0 if wide else 2**-7, atol=0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_sums_of_normed_inputs(dtype, device):
    x = spread_rows((5, 43), dtype, device)
    residual, weight, added = (torch.randn(size, device=device) for size in ((5, 43), 43, 43))
    expected = reference.add_rms_norm(x, residual.clone(), weight, EPS, added, 0.5)
    found = norm.add_rms_norm(x, residual.clone(), weight, EPS, added, 0.5)
    torch.testing.assert_close(found[0], expected[0], **TOLERANCE[dtype])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("adds", [True, False])
def test_layer_norm(shape, dtype, adds, device):
    x = spread_rows(shape, dtype, device) + 3
    residual = torch.randn(shape, device=device).to(dtype) if adds else None
    weight, bias = torch.randn(2, shape[-1], device=device)
    expected = reference.layer_norm(x, weight, bias, EPS, residual)
    found = norm.layer_norm(x, weight, bias, EPS, residual)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("rows", "heads", "size"), [(0, 2, 16), (1, 1, 1), (5, 3, 43), (9, 2, 128)]
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gated_rms_norm(rows, heads, size, dtype, device):
    x = spread_rows((rows, heads * size), dtype, device)
    gate = torch.randn(rows, heads * size + 3, device=device).to(dtype)[:, 2:-1]
    weight = torch.randn(size, device=device)
    expected = delta_net.gated_rms_norm(x, gate, weight, EPS)
    found = norm.gated_rms_norm(x, gate, weight, EPS)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
