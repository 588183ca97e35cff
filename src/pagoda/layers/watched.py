"""Attention to a sound that requests of a step want to see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pagoda.kernels.ref import kv_cache
from pagoda.kernels.ref.kv_cache import FP8, KVScales

Head = tuple[int, int]
"""A layer of the decoder, and one of its heads."""


@dataclass(frozen=True)
class Watched:
    """Only steps that run op by op have it."""

    heads: Mapping[int, Sequence[Head]]
    """What is wanted, by the request's place in the step."""
    owners: torch.Tensor
    """int64 [tokens]: the place of each token's request."""
    found: dict[int, dict[Head, torch.Tensor]] = field(default_factory=dict)
    """By place: fp32 [text tokens, tokens of sound] of each head; nothing where a request has
    tokens of sound alone in the step."""

    def of(self, rows: torch.Tensor) -> "Watched":
        """That of these rows, int64 [rows], of the step; what is found goes to the same place."""
        return replace(self, owners=self.owners[rows])

    def look(
        self,
        layer: int,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        block_table: torch.Tensor,
        query_start: Sequence[int],
        *,
        heard: int,
        scale: float,
        kv_scales: KVScales | None,
    ) -> None:
        """Find the weights of a layer's q [tokens, heads, dim] for the first `heard` keys of each
        request; caches as `AttentionBackend.attend` takes them."""
        for req, (begin, end) in enumerate(zip(query_start, query_start[1:], strict=False)):
            if begin == end:
                continue
            place = int(self.owners[begin])
            blocks = block_table[req, : -(-heard // k_cache.shape[2])]
            for head in self.heads.get(place, ()):
                if head[0] != layer:
                    continue
                keys = _keys(kv_cache.take(k_cache, blocks, slice(head[1], head[1] + 1)), heard)
                if kv_scales is not None:
                    keys = keys * kv_scales.k[head[1]]
                scores = scale * q[begin:end, head[1]].float() @ keys.T
                self.found.setdefault(place, {})[head] = scores.softmax(-1)


def _keys(rows: torch.Tensor, heard: int) -> torch.Tensor:
    """fp32 [heard, dim] of blocks' rows [blocks, 1, block_size, row]."""
    flat = rows[:, 0].flatten(0, 1)[:heard]
    return flat.float() if flat.dtype in FP8 else kv_cache.decode(flat, torch.float32)
