"""Logits that a bit mask forbids: the native kernel and the reference against numpy's bits."""

import numpy as np
import pytest
import torch

from pagoda.kernels import ops
from pagoda.kernels.ref import sampling

FORMS = {"ref": sampling.mask_logits, "op": ops.mask_logits}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000, 49152])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.5, 1.0])
def test_bits_that_are_not_set_forbid(form, vocab, density):
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.standard_normal((5, vocab)).astype(np.float32))
    before = logits.clone()
    index = torch.tensor([3, 0])
    allowed = rng.random((2, -(-vocab // 32) * 32)) < density
    masks = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    FORMS[form](logits, index, masks)
    expected = before.clone()
    for row, kept in zip(index, allowed, strict=True):
        expected[row, torch.from_numpy(~kept[:vocab])] = -torch.inf
    assert torch.equal(logits, expected)


def test_no_rows_change_nothing():
    logits = torch.zeros(2, 64)
    ops.mask_logits(logits, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int32))
    assert not logits.any()
