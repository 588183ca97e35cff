"""Native products of heads: those of single matrices, bit for bit."""

import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.kernels.ref.heads import head_products
from tests.kernels import packed
from tests.kernels.packed import _native, random_raw

ISAS = _native.INSTRUCTION_SETS
HEADS, ROWS, COLUMNS, KEPT = 5, 40, 64, 16


@pytest.fixture(params=ISAS)
def native(request, monkeypatch):
    """The kernels of one instruction set, as those of this process."""
    kernels = _native.Native(2, request.param)
    monkeypatch.setattr(cpu, "_cached", {"native": kernels})
    return kernels


def matrices(storage: str) -> tuple[ops.PackedExperts, list[torch.Tensor]]:
    """(all heads', the bytes of each)."""
    matrix = ops.packed_experts_matrix(storage, HEADS, ROWS, COLUMNS)
    raws = [random_raw(storage, ROWS, COLUMNS, seed=head) for head in range(HEADS)]
    for head, raw in enumerate(raws):
        ops.load_packed_expert(matrix, head, ROWS, 0, raw)
    return ops.PackedExperts((matrix,), ROWS, HEADS, None), raws


@pytest.mark.parametrize("storage", ["F32", "BF16", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("tokens", [1, 3, 64, 150])
def test_products_equal_those_of_single_matrices(native, storage, tokens):
    weight, raws = matrices(storage)
    x = torch.randn(tokens, HEADS, KEPT + COLUMNS + 7)[:, :, : KEPT + COLUMNS]
    behind = torch.randn(tokens, 24)[:, 3:]
    found = ops.head_products(x, weight, KEPT, behind)
    assert found.shape == (tokens, HEADS * (KEPT + ROWS) + 21)
    of_heads = found[:, : HEADS * (KEPT + ROWS)].unflatten(1, (HEADS, KEPT + ROWS))
    assert torch.equal(of_heads[:, :, :KEPT], x[:, :, :KEPT])
    assert torch.equal(found[:, HEADS * (KEPT + ROWS) :], behind)
    for head, raw in enumerate(raws):
        alone = packed.pack(native, storage, raw, COLUMNS)
        expected = ops.packed_matmul(x[:, head, KEPT:].contiguous(), [alone])
        assert torch.equal(of_heads[:, head, KEPT:], expected)


@pytest.mark.parametrize("kept", [0, KEPT])
def test_equals_the_reference(native, kept):
    weight, raws = matrices("F32")
    plain = torch.stack([raw.view(torch.float32) for raw in raws])
    x, behind = torch.randn(9, HEADS, kept + COLUMNS), torch.randn(9, 30)
    for more in (None, behind):
        torch.testing.assert_close(
            ops.head_products(x, weight, kept, more),
            head_products(x, plain, kept, more),
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip


def test_no_tokens(native):
    weight, _ = matrices("F32")
    found = ops.head_products(torch.randn(0, HEADS, COLUMNS), weight)
    assert found.shape == (0, HEADS * ROWS)


def test_other_sizes_are_refused(native):
    weight, _ = matrices("F32")
    with pytest.raises(ValueError, match=r"5 heads of 3 \+ 64"):
        ops.head_products(torch.randn(2, HEADS, COLUMNS), weight, 3)
    with pytest.raises(ValueError, match="float64"):
        ops.head_products(torch.randn(2, HEADS, COLUMNS).double(), weight)


def test_the_reference_by_hand():
    weight = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])  # two heads of one row
    x = torch.tensor([[[9.0, 1.0, 1.0], [8.0, 1.0, 10.0]]])
    found = head_products(x, weight, 1, torch.tensor([[7.0]]))
    assert found.tolist() == [[9.0, 3.0, 8.0, 43.0, 7.0]]
