"""Which keys each query sees in sparse attention (DeepSeek V3.2)."""

import torch

from pagoda.kernels.ref.kv_cache import take

Tensor = torch.Tensor

_SCORES = 1 << 24
"""Elements of the scores of all heads at once."""


def choose_keys(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    kv_lens: Tensor,
    count: int,
) -> Tensor:
    """As `Ops.choose_keys`."""
    heads, block_size = q.shape[1], keys.shape[2]
    chosen = torch.zeros(len(q), count, dtype=torch.int32, device=q.device)
    starts, lens = query_start.tolist(), kv_lens.tolist()
    for req, kv_len in enumerate(lens):
        begin, end = starts[req], starts[req + 1]
        # The first of the queries that choose.
        begin = max(begin, end - (kv_len - count))
        if begin >= end:
            continue
        blocks = block_table[req, : -(-kv_len // block_size)].long()
        known = take(keys, blocks, slice(None)).flatten(0, 2)[:kv_len].float()
        places = torch.arange(kv_len, device=q.device)
        slots = blocks[places // block_size] * block_size + places % block_size
        step = max(1, _SCORES // (heads * kv_len))
        for first in range(begin, end, step):
            rows = slice(first, min(first + step, end))
            each = torch.relu(q[rows].float() @ known.T)
            scores = torch.einsum("th,thk->tk", weights[rows].float(), each)
            own = torch.arange(rows.start, rows.stop, device=q.device) - end + kv_len
            scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
            scores = scores.masked_fill(places > own[:, None], -torch.inf)
            best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
            chosen[rows] = slots[best.sort(dim=-1).values].to(torch.int32)
    return chosen
