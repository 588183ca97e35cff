"""Attention of a decoder's text to a sound: keys and values of the encoder's outputs."""

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec
from pagoda.kernels.attention.backend import Paged
from pagoda.kernels.ref.kv_cache import FP8, KVScales
from pagoda.layers.batch import ForwardBatch, GroupInputs
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard


class HeardAttention(nn.Module):
    """Every query sees all of the sound with which its request begins, and nothing else."""

    def __init__(self, context: LayerContext, spec: AttentionSpec, hidden_size: int, layer: int):
        super().__init__()
        assert spec.heard is not None
        self.spec = spec
        self.layer = layer
        self.backend = context.attention.for_layer(spec)
        shard = Shard.whole(spec.num_heads * spec.head_dim)
        self.kv_scales = KVScales.ones(spec.num_heads, context.device)
        self.q = ColumnLinear(context, hidden_size, (shard,), bias=True)
        self.kv = ColumnLinear(context, hidden_size, (shard, shard), bias=True, unbiased=(0,))
        self.output = RowLinear(context, shard.rows, hidden_size, bias=True)

    def hear(self, embeddings: torch.Tensor, rows: torch.Tensor, batch: ForwardBatch) -> None:
        """Store keys and values of embeddings [heard tokens, hidden], which are those of the rows
        int64 [heard tokens] of the batch."""
        k_cache, v_cache = batch.kv_caches[self.layer]
        kv = self.kv(embeddings)
        # The form of a layer's that has queries too, which nobody reads here.
        qkv = torch.cat((torch.zeros_like(kv[:, : self.kv.sizes[0]]), kv), 1)
        slots = self._where(batch).slot_mapping[rows]
        scales = self.kv_scales if v_cache.dtype in FP8 else None
        positions = batch.positions[rows]
        self.backend.store(qkv, positions, None, k_cache, v_cache, slots, kv_scales=scales)

    def forward(
        self, hidden_states: torch.Tensor, batch: ForwardBatch, ends: torch.Tensor
    ) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; `ends` int32 [at least tokens] are as many times
        the tokens of a sound."""
        k_cache, v_cache = batch.kv_caches[self.layer]
        q = self.q(hidden_states).unflatten(-1, (-1, self.spec.head_dim))
        starts = None if batch.fixed else batch.host_query_start
        table = self._where(batch).block_table
        kv_scales = self.kv_scales if v_cache.dtype in FP8 else None
        if batch.watched is not None:
            batch.watched.look(
                # Each of the decoder's layers is two here.
                self.layer // 2, q, k_cache, table, batch.query_start.tolist(),
                heard=self.spec.heard or 0, scale=self.spec.scale, kv_scales=kv_scales,
            )  # fmt: skip
        plan = Paged(table, batch.query_start, ends[: batch.num_reqs], starts)
        attended = self.backend.attend(
            q,
            k_cache,
            v_cache,
            plan,
            scale=self.spec.scale,
            sees_until=ends[: len(q)],
            kv_scales=kv_scales,
        )
        output: torch.Tensor = self.output(attended.flatten(1))
        return output

    def _where(self, batch: ForwardBatch) -> GroupInputs:
        where = batch.groups[batch.layer_group[self.layer]]
        assert isinstance(where, GroupInputs)
        return where
