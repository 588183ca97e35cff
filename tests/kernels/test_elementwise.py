"""Norms, rotary embeddings, activations, lookups and products against plain mathematics."""

import numpy as np
import pytest
import torch

from pagoda.kernels import ops
from pagoda.kernels.ref import rope

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _close(actual: torch.Tensor, expected: np.ndarray, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=bound, atol=bound)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (5, 33), (0, 16), (3, 4, 7)])
def test_rms_norm(shape, dtype):
    x, weight = _random(*shape, dtype=dtype) * 30, _random(shape[-1])
    wide = x.double().numpy()
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.double().numpy()
    _close(ops.rms_norm(x, weight, 1e-5), expected, dtype)


def test_rms_norm_of_large_half_numbers_does_not_overflow():
    x = torch.full((1, 64), 6e4, dtype=torch.float16)
    out = ops.rms_norm(x, torch.ones(64), 1e-6)
    torch.testing.assert_close(out, torch.ones_like(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_keeps_the_sum_in_the_residuals_dtype(dtype):
    x, residual, weight = _random(4, 24, dtype=dtype), _random(4, 24), _random(24)
    expected = x.float() + residual
    out, total = ops.add_rms_norm(x, residual.clone(), weight, 1e-6)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected, rtol=0, atol=0)
    wide = total.double().numpy()
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight.double().numpy()
    _close(out, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_of_what_is_normalized_first(dtype):
    x, residual = _random(4, 24, dtype=dtype), _random(4, 24)
    weight, added = _random(24), _random(24)
    out, total = ops.add_rms_norm(x, residual.clone(), weight, 1e-6, added, 0.3)
    wide = x.double().numpy()
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * added.double().numpy()
    expected = (normed + residual.double().numpy()) * 0.3
    _close(total, expected, torch.float32)
    square = np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-6)
    _close(out, expected / square * weight.double().numpy(), dtype)
    assert (out.dtype, total.dtype) == (dtype, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "rotary_dim", "head_dim"), [(6, 8, 8), (3, 4, 10), (0, 8, 8)])
def test_rotary_turns_pairs_of_a_complex_plane(tokens, rotary_dim, head_dim, dtype):
    """Dimension i and i + half are the real and imaginary part of one number."""
    half = rotary_dim // 2
    angles = torch.rand(50, half) * 6
    positions = torch.randint(50, (tokens,))
    q, k = _random(tokens, 3, head_dim, dtype=dtype), _random(tokens, 1, head_dim, dtype=dtype)
    before = q.clone()
    turned = rope.rotary(q, k, positions, torch.cat((angles.cos(), angles.sin()), -1))
    for x, out in zip((q, k), turned, strict=True):
        wide = x.double().numpy()
        spin = np.exp(1j * angles.double().numpy()[positions.numpy()])[:, None]
        numbers = (wide[..., :half] + 1j * wide[..., half:rotary_dim]) * spin
        expected = np.concatenate((numbers.real, numbers.imag, wide[..., rotary_dim:]), -1)
        _close(out, expected, dtype)
    assert torch.equal(q, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 10), (0, 6), (1, 2)])
def test_activate_and_mul(shape, dtype):
    x = _random(*shape, dtype=dtype)
    gate, up = np.split(x.double().numpy(), 2, axis=-1)
    _close(ops.activate_and_mul(x), gate / (1 + np.exp(-gate)) * up, dtype)
    gelu = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    _close(ops.activate_and_mul(x, "gelu_tanh"), gelu * up, dtype)
    _close(ops.activate_and_mul(x, "gelu_quick"), gate / (1 + np.exp(-1.702 * gate)) * up, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_activate_mul(dtype):
    x, gate = _random(4, 10, dtype=dtype), _random(4, 10, dtype=dtype)
    gates = gate.double().numpy()
    expected = x.double().numpy() * gates / (1 + np.exp(-gates))
    _close(ops.activate_mul(x, gate, "silu"), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cap(dtype):
    x = _random(5, 12, dtype=dtype) * 3
    _close(ops.soft_cap(x, 2.5), 2.5 * np.tanh(x.double().numpy() / 2.5), dtype)


@pytest.mark.parametrize("ids", [[], [3], [0, 4, 4, 1]])
def test_embed(ids):
    table = _random(5, 6)
    rows = ops.embed(torch.tensor(ids, dtype=torch.int64), table)
    assert rows.shape == (len(ids), 6)
    assert all(torch.equal(row, table[i]) for row, i in zip(rows, ids, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_matmul(tokens, dtype):
    x, weight, bias = (_random(*shape, dtype=dtype) for shape in ((tokens, 17), (13, 17), (13,)))
    product = x.double().numpy() @ weight.double().numpy().T
    expected = product + bias.double().numpy()
    scale = 4 if dtype != torch.float32 else 1  # sums of 17 products reach this size
    _close(ops.matmul(x, weight) / scale, product / scale, dtype)
    _close(ops.matmul(x, weight, bias) / scale, expected / scale, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [0, 3])
def test_matmul_into_fp32_rounds_nothing_on_the_way(dtype, tokens):
    x, weight, bias = (
        _random(tokens, 96, dtype=dtype),
        _random(30000, 96, dtype=dtype),
        _random(30000),
    )
    expected = x.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    out = ops.matmul(x, weight, bias, torch.float32)
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=5e-5)
