"""FlashAttention 3 and 4, by way of `torch.nn.attention.varlen`.

Written against torch 2.13, whose `varlen_attn` takes a block table and `seqused_k`; an older one
that does not is declined (`planner.attention`). **Not run on hardware**: tests play the module and
compute with torch. Results may depend in their last bits on what else is in the step, for the
library cuts long contexts by the longest of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagoda.kernels.attention.backend import AttentionKind, OwnAttention, Step, StoresAsOwn
from pagoda.kernels.ref.kv_cache import KVScales
from pagoda.kernels.triton.target import capability_of

Tensor = torch.Tensor


@dataclass(frozen=True)
class FlashPlan:
    """Views of the step's own tensors: nothing changes but what they hold."""

    block_table: Tensor
    query_start: Tensor
    kv_lens: Tensor
    max_query_len: int
    max_kv_len: int

    def update(self) -> None: ...


@dataclass(frozen=True)
class FlashAttention(StoresAsOwn):
    varlen_attn: Callable[..., Any]
    own: OwnAttention
    """What stores."""
    name: str = "flash-attn"

    def plan(self, kind: AttentionKind, block_table: Tensor, step: Step) -> FlashPlan:
        """As `AttentionBackend.plan`: views of the step's own tensors."""
        starts = step.query_start
        if step.fixed:
            # One row each, those of no request too: these see no key, which gives zeros.
            starts = torch.arange(len(starts), dtype=torch.int32, device=starts.device)
        return FlashPlan(block_table, starts, step.kv_lens, step.max_query_len, step.max_kv_len)

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: FlashPlan,
        *,
        scale: float,
        window: int | None = None,
        chunked: bool = False,
        sinks: Tensor | None = None,
        cap: float | None = None,
        sees_until: Tensor | None = None,
        kv_scales: KVScales | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """As `AttentionBackend.attend`, without chunks, sinks, caps, pictures and 8-bit floats."""
        # The planner declines them.
        assert not chunked and sinks is None and cap is None
        assert sees_until is None and kv_scales is None and chosen is None
        attended: Tensor = self.varlen_attn(
            q,
            k_cache.transpose(1, 2),  # pages of [tokens, heads, dim], any stride apart
            v_cache.transpose(1, 2),
            plan.query_start,
            None,
            plan.max_query_len,
            plan.max_kv_len,
            scale=scale,
            # Keys before the query's own, and behind it.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=q.shape[1] != k_cache.shape[1],
            seqused_k=plan.kv_lens,
            block_table=plan.block_table,
        )
        return attended


def varlen(device: torch.device) -> Callable[..., Any]:
    """torch's function, with the form of FlashAttention for `device` behind it."""
    from torch.nn.attention import activate_flash_attention_impl
    from torch.nn.attention.varlen import varlen_attn

    activate_flash_attention_impl("FA3" if capability_of(device) == 90 else "FA4")
    return varlen_attn
