"""Experts in Triton against their definition in fp64, one token at a time."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels import ops
from pagoda.kernels.ref import experts as reference
from pagoda.kernels.ref.dequant.formats import dequantize
from pagoda.kernels.triton.products import experts
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.products.routing import group_by_expert
from pagoda.kernels.triton.target import assuming
from tests.kernels.adapter_cases import expert_adapters
from tests.kernels.test_experts import (
    expected_adapted,
    expected_mix,
    expected_of_one_matrix,
    random_experts,
)
from tests.kernels.triton.quantized import random_raw

GATINGS = {
    "silu": ops.Gating(),
    "gelu": ops.Gating(activation="gelu_tanh"),
    "clamped": ops.Gating(1.702, 1.5),
}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check(found, x, where, up, down, *rest) -> None:
    cpu = [[None if part is None else part.cpu() for part in pair] for pair in (up, down)]
    expected = expected_mix(x.cpu(), where.ids.cpu(), where.weights.cpu(), *cpu, *rest)
    assert found.dtype == x.dtype and found.shape == x.shape
    atol = TOLERANCE[x.dtype] * max(1e-3, float(np.abs(expected).max()))
    np.testing.assert_allclose(found.cpu().float().numpy(), expected, rtol=0, atol=atol)


def routed(tokens: int, total: int, top_k: int, device: str, together: bool | None = None):
    """With the order of many assignments, or as asked."""
    logits = torch.randn(tokens, total, device=device)
    ids, weights, _ = reference.route(logits, top_k, "topk_softmax", False)
    together = tokens > 2 if together is None else together
    groups = group_by_expert(ids.contiguous(), total) if together else None
    return ops.Routed(ids, weights, groups)


@pytest.mark.parametrize(
    ("tokens", "dtype", "target"),
    [
        (2, torch.bfloat16, 90),
        (2, torch.float32, 75),
        (9, torch.float16, 90),
        (9, torch.bfloat16, 80),
        (9, torch.float16, 75),  # by the library
        (9, torch.float32, 90),
    ],
)
@pytest.mark.parametrize(
    ("gating", "bias", "first", "weighs_inputs"),
    [("silu", False, 0, False), ("gelu", True, 2, True), ("clamped", True, 1, False)],
)
def test_plain(tokens, dtype, target, gating, bias, first, weighs_inputs, device):
    """Experts that are not held add nothing."""
    up, down = (
        ops.PlainExperts(*(None if part is None else part.to(device, dtype) for part in pair))
        for pair in random_experts(3, 40, 20, bias)
    )
    x = torch.randn(tokens, 40, device=device).to(dtype)
    where = routed(tokens, 5, 2, device)
    rest = (GATINGS[gating], first, weighs_inputs)
    with assuming(target):
        out = experts.mix(x, where, up, down, *rest)
    check(out, x, where, up, down, *rest)


@pytest.mark.parametrize(("tokens", "target"), [(2, 90), (9, 90), (9, 75)])
def test_one_matrix_is_gate_and_up(tokens, target, device):
    up, down = random_experts(3, 40, 20, False)
    up, down = (ops.PlainExperts(x.half().to(device), None) for x in (up.weight[:, :20], down[0]))
    x, where = torch.randn(tokens, 40, device=device).half(), routed(tokens, 3, 2, device)
    with assuming(target):
        out = experts.mix(x, where, up, down, ops.Gating(activation="relu"))
    cpu = [ops.PlainExperts(part.weight.cpu(), None) for part in (up, down)]
    expected = expected_of_one_matrix(x.cpu(), where.ids.cpu(), where.weights.cpu(), *cpu)
    atol = TOLERANCE[torch.float16] * float(np.abs(expected).max())
    np.testing.assert_allclose(out.cpu().float().numpy(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("tokens", "dtype", "target"),
    [
        (2, torch.float32, 90),
        (9, torch.float32, 90),
        (9, torch.bfloat16, 80),
        (9, torch.float16, 75),  # by the library
    ],
)
@pytest.mark.parametrize(
    ("gating", "bias", "first", "weighs_inputs"),
    [("silu", False, 0, False), ("clamped", True, 1, True)],
)
def test_adapters(tokens, dtype, target, gating, bias, first, weighs_inputs, device):
    up, down = (
        ops.PlainExperts(*(None if part is None else part.to(device, dtype) for part in pair))
        for pair in random_experts(3, 40, 20, bias)
    )
    x, where = torch.randn(tokens, 40, device=device).to(dtype), routed(tokens, 5, 2, device)
    rest = (GATINGS[gating], first, weighs_inputs)
    adapters = expert_adapters(tokens, 3, up, down)
    on = [ops.AdapterTensors(*(part.to(device) for part in each)) for each in adapters[1:]]
    with assuming(target):
        beside = ops.ExpertAdapters(adapters.slots.to(device), *on)
        out = experts.mix(x, where, up, down, *rest, adapters=beside)
        nobody = beside._replace(slots=torch.full_like(beside.slots, -1))
        without = experts.mix(x, where, up, down, *rest, adapters=nobody)
    still = (adapters.slots < 0).to(device)
    assert torch.equal(out[still], without[still])
    cpu = [
        ops.PlainExperts(*(None if part is None else part.cpu() for part in pair))
        for pair in (up, down)
    ]
    own = ops.Routed(where.ids.cpu(), where.weights.cpu())
    expected = expected_adapted(x.cpu(), own, *cpu, adapters, *rest)
    atol = 2 * TOLERANCE[dtype] * float(np.abs(expected).max())
    np.testing.assert_allclose(out.cpu().float().numpy(), expected, rtol=0, atol=atol)


def packed_experts(storages, count: int, rows: int, columns: int, dtype, device, bias):
    """Experts of a part per storage format, and the same as plain ones."""
    parts, weights = [], []
    for part, storage in enumerate(storages):
        matrix = GpuMatrix(storage, count * rows, columns, device)
        for expert in range(count):
            raw = random_raw(storage, rows, columns, seed=100 * part + expert)
            ops.load_packed_expert(matrix, expert, rows, 0, raw)
            weights.append(dequantize(raw, storage, dtype))
        matrix.settle()
        parts.append(matrix)
    stacked = torch.stack(weights).view(len(storages), count, rows, columns).transpose(0, 1)
    own = torch.randn(count, len(storages) * rows, device=device).to(dtype) if bias else None
    whole = ops.PlainExperts(stacked.flatten(1, 2), own)
    return ops.PackedExperts(tuple(parts), rows, count, own), whole


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(
    ("up", "down", "columns"),
    [
        (("Q4_K", "Q4_K"), "Q8_0", 256),
        (("MXFP4", "MXFP4"), "MXFP4", 96),
        (("FP4", "FP4"), "FP4", 96),
        (("INT4", "INT4"), "FP8", 64),
        (("Q8_0", "Q4_0"), "Q4_1", 64),  # stored apart
    ],
)
def test_quantized(up, down, columns, tokens, device):
    dtype, size, gating = torch.float16, 32, ops.Gating(1.702, 7.0)
    packed_up, plain_up = packed_experts(up, 3, size, columns, dtype, device, bias=True)
    packed_down, plain_down = packed_experts((down,), 3, columns, size, dtype, device, bias=True)
    x = torch.randn(tokens, columns, device=device).to(dtype) / 8
    where = routed(tokens, 4, 1, device)
    out = ops.mix_experts(x, where, packed_up, packed_down, gating)
    check(out, x, where, plain_up, plain_down, gating)


def test_tokens_without_experts_are_zero(device):
    up, down = random_experts(2, 32, 16, False)
    up, down = (ops.PlainExperts(part.weight.half().to(device), None) for part in (up, down))
    for tokens in (0, 1, 5):
        x = torch.randn(tokens, 32, device=device).half()
        ids = torch.full((tokens, 2), 7, device=device)
        weights = torch.rand(tokens, 2, device=device)
        groups = group_by_expert(ids, 8) if tokens > 1 else None
        out = experts.mix(x, ops.Routed(ids, weights, groups), up, down, ops.Gating())
        assert torch.equal(out, torch.zeros_like(x))
