"""Row lookup."""

import torch


def embed(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As `Ops.embed`."""
    return table.index_select(0, token_ids)


def take_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """As `Ops.take_rows`."""
    return x[index]
