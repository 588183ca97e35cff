"""Counters by which the programs of a launch find out which of them is the last."""

from functools import cache

import torch


def arrivals(device: torch.device, count: int) -> torch.Tensor:
    """int32 [at least `count`]: zero in front of each launch, and set back by the programs that
    come last. They stay where they are, for captured steps hold them; launches of a device run
    one after the other."""
    return _zeros(device, 1 << (count - 1).bit_length())


@cache
def _zeros(device: torch.device, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
