"""Self-attention over the paged KV cache."""

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard
from pagoda.layers.norm import RMSNorm


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; `spec` says whether q and k are normalized."""

    def __init__(
        self, context: LayerContext, spec: AttentionSpec, hidden_size: int, eps: float, layer: int
    ):
        super().__init__()
        self.spec = spec
        self.layer = layer
        size = spec.head_dim
        heads = context.parallel.share(spec.num_heads, "attention heads")
        kv_heads = context.parallel.share_kv_heads(spec.num_kv_heads)
        q = Shard(spec.num_heads * size, slice(heads.start * size, heads.stop * size))
        kv = Shard(spec.num_kv_heads * size, slice(kv_heads.start * size, kv_heads.stop * size))
        self.qkv = ColumnLinear(context, hidden_size, (q, kv, kv), spec.qkv_bias)
        if spec.qk_norm:
            self.q_norm = RMSNorm(context, size, eps)
            self.k_norm = RMSNorm(context, size, eps)
        self._eps = eps
        self.rotary = context.rotary.of(spec.rope)
        self.output = RowLinear(context, spec.num_heads * size, hidden_size, spec.output_bias)

    @property
    def norms(self) -> ops.HeadNorms | None:
        if not self.spec.qk_norm:
            return None
        return ops.HeadNorms(self.q_norm.weight, self.k_norm.weight, self._eps)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; stores the tokens' K and V on the way."""
        spec = self.spec
        where = batch.groups[batch.layer_group[self.layer]]
        k_cache, v_cache = batch.kv_caches[self.layer]
        q = ops.rotary_store(
            self.qkv(hidden_states),
            batch.positions,
            self.rotary.upto(batch.max_kv_len),
            k_cache,
            v_cache,
            where.slot_mapping,
            norms=self.norms,
        )
        attended = ops.paged_attention(
            q,
            k_cache,
            v_cache,
            where.block_table,
            batch.query_start,
            batch.kv_lens,
            scale=spec.scale,
            window=spec.window,
        )
        return self.output(attended.flatten(1))
