"""Self-attention: over the paged KV cache, and of encoders, which have none."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec
from pagoda.kernels import ops
from pagoda.kernels.attention.backend import AttentionKind, HeadNorms
from pagoda.kernels.ref.kv_cache import FP8, KVScales
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector
from pagoda.layers.norm import ProjectionNorm, RMSNorm, Vector


class Sinks(WeightedLayer):
    """A logit for each of this rank's heads; fp32."""

    params = ("weight",)

    def __init__(self, context: LayerContext, num_heads: int, heads: slice):
        super().__init__()
        self._num_heads = num_heads
        self._heads = heads
        size = heads.stop - heads.start
        self.weight = torch.empty(size, dtype=torch.float32, device=context.device)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        load = partial(load_vector, self.weight)
        return (LoadTarget((self._num_heads,), load, rows=(self._heads,)),)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class HeadScales(Vector):
    """Multiplies the elements of each head of q; fp32 [head size]."""

    def __init__(self, context: LayerContext, size: int, num_heads: int, columns: int):
        """`columns` are those of q, k and v."""
        super().__init__(context, size)
        self._num_heads = num_heads
        self._of_all = torch.ones(columns, dtype=torch.float32, device=context.device)

    def finalize(self) -> None:
        self._of_all[: self._num_heads * len(self.weight)] = self.weight.repeat(self._num_heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, columns], the first of which are q's: the same shape and dtype."""
        return ops.scale_columns(x, self._of_all[: x.shape[1]])


class Attention(nn.Module):
    """Grouped-query attention; `spec` says whether q and k are normalized, and how rotated."""

    def __init__(
        self,
        context: LayerContext,
        spec: AttentionSpec,
        hidden_size: int,
        eps: float,
        layer: int,
        input_size: int | None = None,
    ):
        """`input_size`: of what q, k and v are made of, where that is not `hidden_size`."""
        super().__init__()
        self.spec = spec
        self.layer = layer
        self.backend = context.attention.for_layer(spec)
        size = spec.head_dim
        heads = context.parallel.share(spec.num_heads, "attention heads")
        kv_heads = context.parallel.share_kv_heads(spec.num_kv_heads)
        self.kv_heads = kv_heads
        self.kv_scales = KVScales.ones(kv_heads.stop - kv_heads.start, context.device)
        """Where the cache is in 8-bit floats; never changed once it is written to."""
        self.kind = AttentionKind(
            heads.stop - heads.start,
            kv_heads.stop - kv_heads.start,
            size,
            spec.scale,
            spec.window,
            spec.chunked,
        )
        q = Shard.of_heads(spec.num_heads, (heads,), size)
        kv = Shard.of_heads(spec.num_kv_heads, (kv_heads,), size)
        shards = (q,) if spec.borrows else (q, kv) if spec.values_are_keys else (q, kv, kv)
        if spec.output_gate:
            shards = (*shards, q)
        self.qkv = ColumnLinear(
            context, input_size or hidden_size, shards, spec.qkv_bias,
            unbiased=() if spec.key_bias else (1,),
        )  # fmt: skip
        self.q_norm: RMSNorm | ProjectionNorm | HeadScales
        self.k_norm: RMSNorm | ProjectionNorm | HeadScales
        if spec.qk_norm_whole:
            self.q_norm = _projection_norm(context, spec.num_heads, heads, size, eps)
            self.k_norm = _projection_norm(context, spec.num_kv_heads, kv_heads, size, eps)
        elif spec.qk_norm_turned:
            columns = sum(self.qkv.sizes)
            self.q_norm = HeadScales(context, size, heads.stop - heads.start, columns)
            self.k_norm = HeadScales(context, size, heads.stop - heads.start, columns)
        elif spec.qk_norm:
            self.q_norm = RMSNorm(context, size, eps)
            if not spec.borrows:
                self.k_norm = RMSNorm(context, size, eps)
        self._parallel = context.parallel
        self._ones = torch.ones(size, dtype=torch.float32, device=context.device)
        self.sinks = Sinks(context, spec.num_heads, heads) if spec.sinks else None
        self._eps = eps
        self.rotary = None if spec.rope is None else context.rotary.of(spec.rope)
        scaling = spec.query_scaling
        self._scales = None if scaling is None else context.rotary.scales_of(scaling)
        self.output = RowLinear(context, spec.num_heads * size, hidden_size, spec.output_bias)

    @property
    def norms(self) -> HeadNorms | None:
        if self.spec.qk_unit or self.spec.qk_norm_turned:
            return HeadNorms(self._ones, self._ones, self._eps)
        if not self.spec.qk_norm or self.spec.qk_norm_whole:
            return None
        q_norm, k_norm = self.q_norm.weight, self.k_norm.weight
        return HeadNorms(q_norm, k_norm, self._eps, self.spec.value_norm)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, input size] -> [tokens, hidden]; stores the tokens' K and V on the way, if it
        does not borrow these."""
        spec = self.spec
        where, plan = batch.attended(self.backend, self.kind, self.layer)
        k_cache, v_cache = batch.kv_caches[self.layer]
        qkv, gate = self.qkv(hidden_states), None
        if spec.output_gate:
            size = self.qkv.sizes[-1]
            qkv, gate = qkv[:, :-size], qkv[:, -size:]
        if spec.qk_norm_whole:
            self._normalize_whole(qkv)
        kv_scales = self.kv_scales if v_cache.dtype in FP8 else None
        q = self._stored(qkv, batch, where.slot_mapping, kv_scales)
        if spec.qk_norm_turned:
            q = self._weighed(q, qkv)
        attended = self.backend.attend(
            q,
            k_cache,
            v_cache,
            plan,
            scale=spec.scale,
            window=spec.window,
            chunked=spec.chunked,
            sinks=None if self.sinks is None else self.sinks.weight,
            cap=spec.logit_cap,
            sees_until=batch.sees_until if spec.both_ways else None,
            kv_scales=kv_scales,
        ).flatten(1)
        if gate is not None:
            attended = ops.sigmoid_mul(attended, gate)
        output: torch.Tensor = self.output(attended)
        return output

    def _stored(
        self,
        qkv: torch.Tensor,
        batch: ForwardBatch,
        slot_mapping: torch.Tensor,
        kv_scales: KVScales | None,
    ) -> torch.Tensor:
        """q [tokens, heads, dim], normalized and rotated; K and V are in the cache, if it does not
        borrow these."""
        spec = self.spec
        positions, cos_sin = batch.positions, None
        if self.rotary is not None:
            positions, cos_sin = self.rotary.at(batch)
        scales = None if self._scales is None else self._scales.upto(batch.max_kv_len)
        if spec.borrows:
            norm = (self.q_norm.weight, self._eps) if spec.qk_norm else None
            return self.backend.rotate(qkv, positions, cos_sin, spec.head_dim, norm, scales)
        k_cache, v_cache = batch.kv_caches[self.layer]
        return self.backend.store(
            qkv,
            positions,
            cos_sin,
            k_cache,
            v_cache,
            slot_mapping,
            norms=self.norms,
            q_scales=scales,
            values_are_keys=spec.values_are_keys,
            kv_scales=kv_scales,
        )

    def _weighed(self, q: torch.Tensor, qkv: torch.Tensor) -> torch.Tensor:
        """A rotation leaves lengths alone, so heads are normalized in front of it, and weighed here
        behind it; a key's weights count the same on the query's side of their product."""
        width = q.shape[1] * q.shape[2]
        # The CPU's kernels rotate q where it is, beside k and v.
        rows = q.flatten(1) if q.stride(0) == width else qkv
        weighed: torch.Tensor = self.k_norm(self.q_norm(rows))[:, :width].unflatten(1, q.shape[1:])
        return weighed

    def _normalize_whole(self, qkv: torch.Tensor) -> None:
        """All of q and all of k, in place, over all ranks that have heads of them."""
        q, k, _ = qkv.split(self.qkv.sizes, dim=-1)
        q_norm, k_norm = self.q_norm, self.k_norm
        assert isinstance(q_norm, ProjectionNorm) and isinstance(k_norm, ProjectionNorm)
        if self._parallel.size == 1:
            q_norm.normalize(q)
            k_norm.normalize(k)
            return
        holders = max(1, self._parallel.size // self.spec.num_kv_heads)
        squares = [q_norm.squares(q, 1), k_norm.squares(k, holders)]
        means = self._parallel.summed(torch.stack(squares))
        q_norm.normalize_part(q, means[0])
        k_norm.normalize_part(k, means[1])


def borrow_scales(layers: Sequence[Attention]) -> None:
    """Layers that borrow K and V read these by the scales that they were stored with."""
    for index, layer in enumerate(layers):
        layer.kv_scales = layers[index - layer.spec.borrows].kv_scales


def _projection_norm(
    context: LayerContext, num_heads: int, held: slice, size: int, eps: float
) -> ProjectionNorm:
    return ProjectionNorm(
        context, num_heads * size, slice(held.start * size, held.stop * size), eps
    )


class EncoderAttention(nn.Module):
    """Every token of a text sees all others, or with a window those near it."""

    def __init__(self, context: LayerContext, spec: AttentionSpec, hidden_size: int, eps: float):
        super().__init__()
        self.spec = spec
        size = spec.head_dim
        heads = context.parallel.share(spec.num_heads, "attention heads")
        kv_heads = context.parallel.share_kv_heads(spec.num_kv_heads)
        q = Shard.of_heads(spec.num_heads, (heads,), size)
        kv = Shard.of_heads(spec.num_kv_heads, (kv_heads,), size)
        self.qkv = ColumnLinear(context, hidden_size, (q, kv, kv), spec.qkv_bias)
        if spec.qk_norm:
            self.q_norm = RMSNorm(context, size, eps)
            self.k_norm = RMSNorm(context, size, eps)
        self.rotary = None if spec.rope is None else context.rotary.of(spec.rope)
        self.output = RowLinear(context, spec.num_heads * size, hidden_size, spec.output_bias)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        spec = self.spec
        parts = self.qkv(hidden_states).split(self.qkv.sizes, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, spec.head_dim)) for part in parts)
        if spec.qk_norm:
            q, k = self.q_norm(q.contiguous()), self.k_norm(k.contiguous())
        if self.rotary is not None:
            q, k = ops.rotary(q, k, *self.rotary.at(batch))
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        attended = ops.encoder_attention(
            q, k, v, batch.query_start, scale=spec.scale, window=spec.window
        )
        output: torch.Tensor = self.output(attended.flatten(1))
        return output
