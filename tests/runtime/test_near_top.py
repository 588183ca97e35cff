"""Top-n-sigma, held against numpy's mean and deviation."""

import numpy as np
import torch

from pagoda.runtime.sampling.near_top import keep_near_top


def test_keeps_what_is_within_n_deviations_of_the_largest() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)) * 3
    logits[1, ::3] = -torch.inf  # what a grammar forbids takes no part
    widths = np.array([1.0, 1.5, 0.0, -1.0], np.float32)
    found = logits.clone()
    keep_near_top(found, logits.amax(dim=1), widths)
    for row, width in enumerate(widths.tolist()):
        values = logits[row].double().numpy()
        allowed = values[np.isfinite(values)]
        kept = np.ones(1000, bool) if width <= 0 else values >= values.max() - width * allowed.std()
        expected = torch.where(torch.from_numpy(kept), logits[row], -torch.inf)
        assert torch.equal(found[row], expected)
        assert 0 < found[row].isfinite().sum() < 1000 or width <= 0


def test_a_row_does_not_see_its_neighbours() -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    widths = np.full(5, 0.7, np.float32)
    together, alone = logits.clone(), logits.clone()
    keep_near_top(together, logits.amax(dim=1), widths)
    for row in range(5):
        keep_near_top(alone[row : row + 1], logits[row : row + 1].amax(dim=1), widths[:1])
    assert torch.equal(together, alone)


def test_broken_and_empty_rows_stay_as_they_are() -> None:
    logits = torch.full((2, 8), -torch.inf)
    logits[1, 3] = torch.nan
    keep_near_top(logits, logits.amax(dim=1), np.ones(2, np.float32))
    assert logits[0].isneginf().all() and logits[1].isnan().any()
