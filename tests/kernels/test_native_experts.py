"""Native routing and experts against definitions and against products one by one."""

import numpy as np
import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.kernels.ref import experts as ref
from tests.kernels import packed
from tests.kernels.adapter_cases import expert_adapters
from tests.kernels.packed import _native
from tests.kernels.test_experts import (
    GATINGS,
    check_corrected_route,
    check_route,
    expected_adapted,
    expected_mix,
    expected_of_one_matrix,
    random_experts,
)

from pagoda.kernels.cpu.ops import CpuOps  # isort: skip - behind the skip

ISAS = _native.INSTRUCTION_SETS


@pytest.fixture(params=ISAS)
def native(request, monkeypatch):
    """The kernels of one instruction set, as those of this process."""
    kernels = _native.Native(2, request.param)
    monkeypatch.setattr(cpu, "_cached", {"native": kernels})
    return kernels


def pack(weight: torch.Tensor, parts: int, bias: torch.Tensor | None) -> ops.PackedExperts:
    """fp32 [experts, parts * rows, columns]."""
    count, rows, columns = len(weight), weight.shape[1] // parts, weight.shape[2]
    matrices = []
    for part in range(parts):
        matrix = ops.packed_experts_matrix("F32", count, rows, columns)
        for expert in range(count):
            raw = weight[expert, part * rows : (part + 1) * rows].contiguous().view(torch.uint8)
            ops.load_packed_expert(matrix, expert, rows, 0, raw)
        matrices.append(matrix)
    return ops.PackedExperts(tuple(matrices), rows, count, bias)


def test_route(native):
    check_route(CpuOps(native).route)


def test_corrected_route(native):
    check_corrected_route(CpuOps(native).route)


@pytest.mark.parametrize(("groups", "top_groups"), [(5, 1), (4, 1), (4, 5), (0, 0)])
def test_groups_that_cannot_be(groups, top_groups, native):
    correction = ops.Correction(torch.zeros(8), groups, top_groups)
    with pytest.raises(ValueError, match="group"):
        CpuOps(native).route(torch.randn(2, 8), 3, "sigmoid", True, None, correction)


def test_route_of_rows_apart(native):
    logits = torch.randn(5, 9)
    expected = CpuOps(native).route(logits[:, :8].contiguous(), 3, "softmax", True)
    found = CpuOps(native).route(logits[:, :8], 3, "softmax", True)
    assert all(torch.equal(a, b) for a, b in zip(found[:2], expected[:2], strict=True))


def test_route_of_nan_names_experts_that_exist(native):
    logits = torch.randn(3, 40)
    logits[1] = torch.nan
    ids, weights, _ = CpuOps(native).route(logits, 6, "softmax", True)
    assert weights[1].isnan().all()
    assert not weights[[0, 2]].isnan().any()
    assert all(len(set(row)) == 6 and set(row) <= set(range(40)) for row in ids.tolist())


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize(
    ("count", "hidden", "size", "top_k"), [(1, 5, 3, 1), (7, 48, 21, 3), (16, 33, 16, 16)]
)
def test_equals_definition(native, gating, count, hidden, size, top_k):
    torch.manual_seed(count)
    for tokens in (1, 2, 19):
        up, down = random_experts(count, hidden, size, bias=tokens > 1)
        x = torch.randn(tokens, hidden) * 2
        ids, weights, _ = ref.route(torch.randn(tokens, count), top_k, "topk_softmax", False)
        packed_up, packed_down = pack(up.weight, 2, up.bias), pack(down.weight, 1, down.bias)
        for inputs in (False, True):
            out = ops.mix_experts(
                x,
                ops.Routed(ids, weights),
                packed_up,
                packed_down,
                GATINGS[gating],
                weighs_inputs=inputs,
            )
            expected = expected_mix(x, ids, weights, up, down, GATINGS[gating], 0, inputs)
            np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 600])  # more pairs than one round has
def test_one_matrix_is_gate_and_up(native, tokens):
    torch.manual_seed(1)
    up, down = random_experts(6, 24, 21, bias=False)
    up, x = ops.PlainExperts(up.weight[:, :21], None), torch.randn(tokens, 24) * 2
    ids, weights, _ = ref.route(torch.randn(tokens, 6), 3, "sigmoid", False)
    packed_up, packed_down = pack(up.weight, 1, None), pack(down.weight, 1, None)
    gating, routed = ops.Gating(activation="relu"), ops.Routed(ids, weights)
    out = ops.mix_experts(x, routed, packed_up, packed_down, gating)
    expected = expected_of_one_matrix(x, ids, weights, up, down)
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_other_ranks_experts_add_nothing(native):
    torch.manual_seed(5)
    up, down = random_experts(3, 32, 16, bias=True)
    x = torch.randn(6, 32)
    ids, weights, _ = ref.route(torch.randn(6, 9), 4, "softmax", True)
    halves = pack(up.weight, 2, up.bias), pack(down.weight, 1, down.bias)
    for first in (0, 5, 9):
        out = ops.mix_experts(x, ops.Routed(ids, weights), *halves, ops.Gating(), first)
        expected = expected_mix(x, ids, weights, up, down, ops.Gating(), first)
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("tokens", [1, 9, 260])  # the last in two rounds
def test_adapters_beside_experts(native, gating, tokens):
    torch.manual_seed(tokens)
    up, down = random_experts(5, 33, 21, bias=True)
    x = torch.randn(tokens, 33) * 2
    routed = ref.route(torch.randn(tokens, 7), 3, "topk_softmax", False)
    adapters = expert_adapters(tokens, 5, up, down)
    packed = pack(up.weight, 2, up.bias), pack(down.weight, 1, down.bias)
    for first, inputs in ((0, False), (2, True)):
        rest = (GATINGS[gating], first)
        out = ops.mix_experts(x, routed, *packed, *rest, weighs_inputs=inputs, adapters=adapters)
        expected = expected_adapted(x, routed, up, down, adapters, *rest, inputs)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
        few = slice(tokens // 2, tokens // 2 + 1)
        own = ops.Routed(routed.ids[few], routed.weights[few])
        slots = adapters._replace(slots=adapters.slots[few])
        alone = ops.mix_experts(x[few], own, *packed, *rest, weighs_inputs=inputs, adapters=slots)
        assert torch.equal(alone, out[few])


def test_tokens_without_an_adapter_keep_their_bits(native):
    torch.manual_seed(4)
    up, down = random_experts(5, 33, 21, bias=False)
    x, routed = torch.randn(20, 33), ref.route(torch.randn(20, 5), 2, "softmax", True)
    packed = pack(up.weight, 2, None), pack(down.weight, 1, None)
    adapters = expert_adapters(20, 5, up, down)
    without = ops.mix_experts(x, routed, *packed, ops.Gating())
    out = ops.mix_experts(x, routed, *packed, ops.Gating(), adapters=adapters)
    still = adapters.slots < 0
    assert torch.equal(out[still], without[still])
    assert not torch.equal(out[~still], without[~still])


class Quantized:
    """Experts of random bytes, and their products with one token one matrix at a time."""

    def __init__(self, native, storages, count, hidden, size):
        self.native = native
        self.rows = (size, size, hidden)
        columns = (hidden, hidden, size)
        self.raw = [
            [packed.random_raw(name, rows, width, seed=10 * e + i) for e in range(count)]
            for i, (name, rows, width) in enumerate(zip(storages, self.rows, columns, strict=True))
        ]
        self.columns, self.storages = columns, storages
        matrices = []
        for parts, name, rows, width in zip(self.raw, storages, self.rows, columns, strict=True):
            matrix = ops.packed_experts_matrix(name, count, rows, width)
            for expert, raw in enumerate(parts):
                ops.load_packed_expert(matrix, expert, rows, 0, raw)
            matrices.append(matrix)
        self.bias = torch.randn(count, 2 * size), torch.randn(count, hidden)
        self.up = ops.PackedExperts(tuple(matrices[:2]), size, count, self.bias[0])
        self.down = ops.PackedExperts((matrices[2],), hidden, count, self.bias[1])

    def mix(self, x, ids, weights):
        return ops.mix_experts(x, ops.Routed(ids, weights), self.up, self.down, ops.Gating())

    def alone(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        def matrix(i: int):
            raw = self.raw[i][expert]
            return packed.pack(self.native, self.storages[i], raw, self.columns[i])

        inner = packed.multiply(self.native, x[None], [matrix(0), matrix(1)], self.bias[0][expert])
        gated = CpuOps(self.native).activate_and_mul(inner, "silu")
        return packed.multiply(self.native, gated, [matrix(2)], self.bias[1][expert])[0]


@pytest.mark.parametrize(
    "storages",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("MXFP4",) * 3,
        ("Q8_0", "Q4_1", "BF16"),
        ("IQ4_NL", "F16", "Q8_0"),
        ("IQ2_XXS", "TQ1_0", "IQ3_S"),
    ],
)
def test_equals_products_one_by_one(native, storages):
    torch.manual_seed(6)
    model = Quantized(native, storages, 6, 256, 256)
    x = torch.randn(21, 256)
    ids, weights, _ = ref.route(torch.randn(21, 6) * 3, 3, "softmax", True)
    out = model.mix(x, ids, weights)
    for row in range(len(x)):
        chosen = zip(ids[row].tolist(), weights[row].tolist(), strict=True)
        expected = sum(weight * model.alone(x[row], expert) for expert, weight in chosen)
        torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("storage", ["Q4_K", "MXFP4", "F32"])
def test_neighbours_and_threads_change_no_bit(native, storage, monkeypatch):
    """700 tokens of 4 experts each take several rounds, and an expert's tokens several runs."""
    torch.manual_seed(7)
    model = Quantized(native, (storage,) * 3, 5, 256, 256)
    x = torch.randn(700, 256)
    ids, weights, _ = ref.route(torch.randn(700, 5), 4, "softmax", True)
    whole = model.mix(x, ids, weights)
    assert not whole.isnan().any()
    for part in (slice(0, 1), slice(3, 20), slice(100, 333), slice(699, 700)):
        assert torch.equal(model.mix(x[part], ids[part], weights[part]), whole[part])
    monkeypatch.setattr(cpu, "_cached", {"native": _native.Native(3, native.isa)})
    assert torch.equal(model.mix(x, ids, weights), whole)


def test_mixing_that_does_not_fit_is_refused(native):
    up, down = random_experts(2, 32, 16, bias=False)
    halves = pack(up.weight, 2, None), pack(down.weight, 1, None)
    ids, weights = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    with pytest.raises(ValueError, match="do not fit 31 columns"):
        ops.mix_experts(torch.zeros(3, 31), ops.Routed(ids, weights), *halves, ops.Gating())
    with pytest.raises(ValueError, match="a row per token"):
        ops.mix_experts(torch.zeros(2, 32), ops.Routed(ids, weights), *halves, ops.Gating())
