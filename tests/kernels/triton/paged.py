"""Requests whose K and V lie in poisoned caches, blocks in random order, for kernels in Triton."""

from dataclasses import dataclass, field

import torch

from pagoda.core.kvcache.spec import ALIGNMENT, KVLayout
from pagoda.kernels.ref import attention as ref
from pagoda.kernels.ref.kv_cache import FP8, row_elements, views

MIXES = {
    "first token": [(1, 1)],
    "decodes": [(1, 64), (1, 65), (1, 1), (1, 17)],
    "prefill": [(41, 41)],
    "mixed": [(1, 70), (7, 40), (1, 3), (4, 19), (2, 2)],
    "idle requests": [(0, 5), (3, 7), (0, 0), (1, 9), (0, 0)],
}


def poisoned(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, full of NaN, laid out and aligned as the runner's: two layers in one buffer."""
    size = kv_heads * block_size * row_elements(head_dim, dtype) * dtype.itemsize
    step = -(-size // ALIGNMENT) * ALIGNMENT
    memory = torch.full((num_blocks, 4 * step), 0xFF, dtype=torch.uint8)  # NaN in each type
    k, v = (memory[:, start : start + size].view(dtype) for start in (2 * step, 3 * step))
    return views(k, v, KVLayout("tokens", block_size), kv_heads)


def readable(k_cache: torch.Tensor, v_cache: torch.Tensor) -> list[torch.Tensor]:
    """The same for the reference, which does not read 8-bit floats."""
    fp8 = v_cache.dtype in FP8
    return [cache.float() if fp8 else cache for cache in (k_cache, v_cache)]


@dataclass
class Case:
    """Requests of (queries, KV length)."""

    requests: list[tuple[int, int]]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    q_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    padding: int = 0
    how: dict[str, object] = field(default_factory=dict)
    """What both forms are called with."""

    def __post_init__(self):
        generator = torch.Generator().manual_seed(7)
        per_request = [-(-kv_len // self.block_size) for _, kv_len in self.requests]
        num_blocks = sum(per_request) + 3
        self.k_cache, self.v_cache = poisoned(
            num_blocks, self.kv_heads, self.block_size, self.head_dim, self.dtype
        )
        free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
        self.table = torch.zeros(len(self.requests), max(per_request) + 2).int()
        for row, (queries, kv_len) in enumerate(self.requests):
            seen = self._first_seen(kv_len - queries)
            for column in range(seen // self.block_size, per_request[row]):
                self.table[row, column] = free.pop()
            at = torch.arange(seen, kv_len)
            blocks = self.table[row].long()[at // self.block_size]
            shape = (2, len(at), self.kv_heads, self.head_dim)
            k, v = torch.randn(shape, generator=generator)
            slots = blocks * self.block_size + at % self.block_size
            ref.store_kv(k, v, self.k_cache, self.v_cache, slots)
        counts = torch.tensor([0, *(queries for queries, _ in self.requests)])
        self.starts = counts.cumsum(0).int()
        self.lens = torch.tensor([kv_len for _, kv_len in self.requests], dtype=torch.int32)
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        rows = torch.randn(int(counts.sum()) + self.padding, width, generator=generator) * 2
        # q lies in the rows of qkv.
        q = rows.to(self.q_dtype)[:, : self.heads * self.head_dim]
        self.q = q.unflatten(1, (self.heads, self.head_dim))

    def _first_seen(self, first_query: int) -> int:
        """Keys before every query's sight may be another request's by now: NaN."""
        window = self.how.get("window")
        if window is None:
            return 0
        if self.how.get("chunked"):
            return first_query - first_query % window
        return max(0, first_query - window + 1)

    def run(self, paged_attention) -> torch.Tensor:
        on_device = (
            x.to(self.device)
            for x in (self.q, self.k_cache, self.v_cache, self.table, self.starts, self.lens)
        )
        how = {
            name: x.to(self.device) if isinstance(x, torch.Tensor) else x
            for name, x in self.how.items()
        }
        return paged_attention(*on_device, scale=self.head_dim**-0.5, **how).cpu()

    def expected(self, paged_attention=ref.paged_attention) -> torch.Tensor:
        """In fp32, whatever q's type."""
        caches = readable(self.k_cache, self.v_cache)
        return paged_attention(
            self.q.float().contiguous(), *caches, self.table, self.starts, self.lens,
            scale=self.head_dim**-0.5, **self.how,
        )  # fmt: skip
