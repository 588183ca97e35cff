"""From hidden states to one vector per request."""

import torch
import torch.nn.functional as F


def last_token(hidden_states: torch.Tensor) -> list[list[float]]:
    """Last tokens' hidden states [requests, hidden] as vectors of length 1."""
    vectors: list[list[float]] = F.normalize(hidden_states.float(), dim=-1).tolist()
    return vectors
