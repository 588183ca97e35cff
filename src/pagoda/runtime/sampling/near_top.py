"""Top-n-sigma: what lies near enough to the largest logit is kept."""

import numpy as np
import numpy.typing as npt
import torch

from pagoda.runtime.device import to_tensor


def keep_near_top(logits: torch.Tensor, top: torch.Tensor, widths: npt.NDArray[np.float32]) -> None:
    """Set to -inf, in rows of fp32 logits [rows, vocab], what lies more than `widths[row]` standard
    deviations below fp32 top [rows], the row's largest; a width of 0 or less keeps all.

    The deviation is that of the logits before, without those of forbidden tokens (-inf), which no
    temperature changes (arXiv:2411.07641).
    """
    rows = np.flatnonzero(widths > 0)
    if not len(rows):
        return
    index = to_tensor(rows, logits.device)
    values = logits[index]
    left = values.isfinite()
    count = left.sum(dim=-1)
    wide = values.double().masked_fill_(~left, 0.0)
    mean = _total(wide) / count
    spread = (wide - mean[:, None]).square_().masked_fill_(~left, 0.0)
    deviation = (_total(spread) / count).sqrt_()
    least = top[index] - to_tensor(widths[rows], logits.device) * deviation
    logits[index] = values.masked_fill_(values < least[:, None], -torch.inf)


def _total(values: torch.Tensor) -> torch.Tensor:
    """The sum of each row, added one by one: a sum's order would change with the rows beside it."""
    return values.cumsum(dim=-1)[:, -1]
