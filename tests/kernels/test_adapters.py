"""Low-rank adapters beside a product: the reference and each set of native kernels."""

import pytest
import torch

from pagoda.kernels import cpu
from pagoda.kernels.ref import ops as reference
from tests.kernels.adapter_cases import adapter_case, expected_of

SHAPES = [(0, 8, (3,)), (1, 43, (5, 17)), (7, 64, (600, 40, 40)), (67, 33, (9,))]


@pytest.fixture(params=[None, *((isa, n) for isa in cpu.instruction_sets() for n in (1, 3))])
def ops(request):
    if request.param is None:
        return reference
    from pagoda.kernels.cpu._native import Native
    from pagoda.kernels.cpu.ops import CpuOps

    isa, threads = request.param
    return CpuOps(Native(threads, isa))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_rows_gain(ops, shape, dtype):
    case = adapter_case(*shape, dtype)
    case = case._replace(x=case.x.float())
    out = torch.randn(shape[0], sum(shape[2]))
    expected = expected_of(out, case)
    ops.add_adapters(out, *case.operands, case.sizes)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_gains_the_same_bits_in_every_batch(ops):
    case = adapter_case(67, 143, (600, 41), torch.float32)
    before = torch.randn(67, 641)
    together = before.clone()
    ops.add_adapters(together, *case.operands, case.sizes)
    for rows in (slice(5, 6), slice(6, 9), slice(20, 40)):
        part = before[rows].clone()
        slots = case.slots[rows].contiguous()
        ops.add_adapters(part, case.x[rows], case.a, case.b, case.ranks, slots, case.sizes)
        assert torch.equal(part, together[rows])


def test_rows_without_an_adapter_keep_their_bits(ops):
    case = adapter_case(11, 16, (24,), torch.float32)
    out = torch.randn(11, 24)
    before = out.clone()
    ops.add_adapters(out, *case.operands, case.sizes)
    still = torch.tensor([slot in (-1, 1) for slot in case.slots.tolist()])
    assert torch.equal(out[still], before[still])
    assert not torch.equal(out[~still], before[~still])


def test_rows_may_lie_apart(ops):
    case = adapter_case(6, 20, (8, 8), torch.float32)
    whole = torch.full((6, 30), torch.nan)
    out = whole[:, 3:19].copy_(torch.randn(6, 16))
    expected = expected_of(out, case)
    wide = torch.full((6, 25), torch.nan)
    wide[:, 2:22] = case.x
    ops.add_adapters(out, wide[:, 2:22], *case.operands[1:], case.sizes)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert whole[:, :3].isnan().all() and whole[:, 19:].isnan().all()


def test_half_precision_is_rounded_once():
    case = adapter_case(9, 32, (16, 8), torch.bfloat16)
    out = torch.randn(9, 24).bfloat16()
    expected = expected_of(out, case).bfloat16()
    reference.add_adapters(out, *case.operands, case.sizes)
    torch.testing.assert_close(out, expected, rtol=8e-3, atol=8e-3)
