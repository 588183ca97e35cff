"""Activations and rotary embeddings in Triton against their references."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref import activation as reference
from pagoda.kernels.ref import experts, rope
from pagoda.kernels.triton import activation
from pagoda.kernels.triton.rope import rotary
from tests.kernels.triton.forms import TOLERANCE, spread_rows

SHAPES = [(0, 8), (1, 2), (3, 43), (2, 3, 30), (2, 2500)]
KINDS = ["gelu", "gelu_quick", "gelu_tanh", "identity", "relu", "silu"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_activate_and_scale(shape, dtype, device):
    x = spread_rows(shape, dtype, device) * 4
    for kind in KINDS:
        expected = reference.activate(x, kind)
        torch.testing.assert_close(activation.activate(x, kind), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(activation.scale(x, 1.7), x * 1.7, **TOLERANCE[dtype])
    expected = reference.soft_cap(x.float(), 20).to(dtype)
    limits = {"rtol": TOLERANCE[dtype]["rtol"], "atol": 1e-5}
    torch.testing.assert_close(activation.soft_cap(x, 20.0), expected, **limits)


@pytest.mark.parametrize("kind", KINDS)
def test_far_ends(kind, device):
    """NaN stays NaN, and infinities make no other."""
    x = torch.tensor([torch.nan, torch.inf, -100.0, -30.0, 30.0, 1e4], device=device)
    # One by one: of infinity among others torch's gelu makes NaN where it has AVX-512.
    expected = torch.stack([reference.activate(one, kind) for one in x])
    found = activation.activate(x, kind)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (3, 86), (2, 3, 30), (2, 2500)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gated(shape, dtype, device):
    x = spread_rows(shape, dtype, device) * 3
    for kind in KINDS:
        # The reference rounds the activation before the product, too.
        expected = reference.activate_and_mul(x.float(), kind).to(dtype)
        found = activation.activate_and_mul(x, kind)
        torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 43), (2, 2500)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gated_by_another(shape, dtype, device):
    x, gate = spread_rows(shape, dtype, device), spread_rows(shape, dtype, device) * 3
    for kind in KINDS:
        expected = reference.activate_mul(x.float(), gate.float(), kind).to(dtype)
        found = activation.activate_mul(x, gate, kind)
        torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_clamped_gating(dtype, device):
    x = spread_rows((7, 86), dtype, device) * 9
    gating = experts.Gating(alpha=1.702, limit=7.0)
    # The reference rounds after each step, three times before the product.
    expected = experts.gate(x.float(), gating).to(dtype)
    torch.testing.assert_close(activation.gate(x, gating), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 43), (2, 2500)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gates_beside(shape, dtype, device):
    x, added, gate = (spread_rows(shape, dtype, device) for _ in range(3))
    expected = reference.sigmoid_mul(x, gate)
    torch.testing.assert_close(activation.sigmoid_mul(x, gate), expected, **TOLERANCE[dtype])
    one = gate[:, :1]
    for gates in (one, None):
        expected = reference.add_gated(x, added, gates)
        found = activation.add_gated(x, added, gates)
        torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim", "rotary_dim"),
    [(0, 2, 1, 8, 8), (1, 1, 1, 2, 2), (5, 3, 1, 20, 12), (4, 14, 2, 128, 128)],
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rotary(tokens, heads, kv_heads, dim, rotary_dim, dtype, device):
    qkv = spread_rows((tokens, (heads + 2 * kv_heads) * dim), dtype, device)
    q = qkv[:, : heads * dim].unflatten(1, (heads, dim))
    k = qkv[:, heads * dim : (heads + kv_heads) * dim].unflatten(1, (kv_heads, dim))
    positions = torch.randint(0, 30, (tokens,), device=device)
    cos_sin = torch.randn(30, rotary_dim, device=device)
    expected = rope.rotary(q, k, positions, cos_sin)
    torch.testing.assert_close(rotary(q, k, positions, cos_sin), expected, **TOLERANCE[dtype])
