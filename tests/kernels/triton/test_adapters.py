"""Low-rank adapters in Triton against plain products."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.triton.adapters import add_adapters
from tests.kernels.adapter_cases import adapter_case, expected_of
from tests.kernels.triton.forms import TOLERANCE, spread_rows


@pytest.mark.parametrize("shape", [(0, 8, (3,)), (1, 43, (5, 17)), (6, 700, (600, 40))], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_what_rows_gain(shape, dtype, device):
    case = adapter_case(*shape, dtype, device)
    out = spread_rows((shape[0], sum(shape[2])), dtype, device)
    expected = expected_of(out, case).to(dtype)
    add_adapters(out, *case.operands, case.sizes)
    torch.testing.assert_close(out, expected, **TOLERANCE[dtype])


def test_a_row_gains_the_same_bits_in_every_batch(device):
    case = adapter_case(9, 143, (60, 41), torch.float32, device)
    before = torch.randn(9, 101, device=device)
    together = before.clone()
    add_adapters(together, *case.operands, case.sizes)
    for rows in (slice(3, 4), slice(4, 8)):
        part, slots = before[rows].clone(), case.slots[rows]
        add_adapters(part, case.x[rows], case.a, case.b, case.ranks, slots, case.sizes)
        assert torch.equal(part, together[rows])
