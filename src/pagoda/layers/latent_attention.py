"""Multi-head latent attention (arXiv 2405.04434) over the paged KV cache."""

import torch
from torch import nn

from pagoda.arch.latent import IndexerSpec, LatentSpec
from pagoda.arch.spec import AttentionSpec
from pagoda.kernels import ops
from pagoda.kernels.attention.backend import AttentionBackend, AttentionKind
from pagoda.kernels.ref.kv_cache import FP8, KVScales
from pagoda.layers.batch import ForwardBatch, GroupInputs
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard, replicated
from pagoda.layers.moe import ExpertMatrices
from pagoda.layers.norm import LayerNorm, RMSNorm
from pagoda.quant.experts import ExpertSizes, expert_format


class HeadMatrices(ExpertMatrices):
    """A matrix [rows, columns] of each head that this rank has; a GPU has them in the dtype of
    activations."""

    def __init__(self, context: LayerContext, heads: slice, rows: int, columns: int):
        sizes = ExpertSizes(heads.stop - heads.start, 1, rows, columns)
        super().__init__(context, heads, sizes, bias=False)

    def create(self, storages: tuple[str, ...]) -> None:
        context = self._context
        packed = context.packed and context.device == "cpu"
        self.format = expert_format(
            self.sizes, storages, context.dtype, context.device, packed=packed
        )

    def forward(
        self, x: torch.Tensor, kept: int = 0, behind: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `ops.head_products`."""
        return ops.head_products(x, self.format.operand(None), kept, behind)


class Indexer(nn.Module):
    """Chooses the tokens that a query sees; every rank has it whole."""

    def __init__(
        self, context: LayerContext, latent: LatentSpec, indexer: IndexerSpec, hidden_size: int
    ):
        super().__init__()
        assert latent.query_rank is not None
        self.spec = indexer
        self.q = replicated(context, latent.query_rank, indexer.num_heads * indexer.head_dim)
        self.k = replicated(context, hidden_size, indexer.head_dim)
        self.k_norm = LayerNorm(context, indexer.head_dim, 1e-6)
        self.weights = replicated(context, hidden_size, indexer.num_heads)

    def forward(
        self,
        hidden_states: torch.Tensor,
        queries: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        where: GroupInputs,
        batch: ForwardBatch,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """As `Ops.choose_keys`, of [tokens, hidden] and what queries are made of [tokens, rank];
        stores the tokens' keys on the way."""
        dim = self.spec.head_dim
        q = backend.rotate(self.q(queries), *rotation, dim)
        own = self.k_norm(self.k(hidden_states))
        backend.store(own, *rotation, keys, keys, where.slot_mapping, values_are_keys=True)
        return ops.choose_keys(
            q, self.weights(hidden_states), keys, where.block_table, batch.query_start,
            batch.kv_lens, self.spec.count,
        )  # fmt: skip


class LatentAttention(nn.Module):
    """The form in which heads share one key per token. With a head's W_K and W_V, which make its
    key and value of the vector c that is cached: q (W_K c) = (W_K^T q) c, and what it says is W_V
    times the sum over tokens of weight * c."""

    def __init__(
        self,
        context: LayerContext,
        spec: AttentionSpec,
        latent: LatentSpec,
        hidden_size: int,
        layer: int,
    ):
        super().__init__()
        self.spec = spec
        self.latent = latent
        self.layer = layer
        self.backend = context.attention.for_layer(spec)
        heads = context.parallel.share(spec.num_heads, "attention heads")
        self.kind = AttentionKind(heads.stop - heads.start, 1, spec.head_dim, spec.scale)
        self._kv_scales = KVScales.ones(1, context.device)
        queries = (Shard.of_heads(spec.num_heads, (heads,), latent.query_dim),)
        if latent.query_rank is None:
            self.q = ColumnLinear(context, hidden_size, queries)
        else:
            self.q_a = replicated(context, hidden_size, latent.query_rank)
            self.q_norm = RMSNorm(context, latent.query_rank, latent.norm_eps)
            self.q_b = ColumnLinear(context, latent.query_rank, queries)
        self.kv_a = replicated(context, hidden_size, latent.row_dim)
        self.kv_norm = RMSNorm(context, latent.rank, latent.norm_eps)
        self.k_b = HeadMatrices(context, heads, latent.rank, latent.key_dim)
        self.v_b = HeadMatrices(context, heads, latent.value_dim, latent.rank)
        assert spec.rope is not None
        self.rotary = context.rotary.of(spec.rope)
        if latent.indexer is not None and latent.indexer.own:
            self.indexer = Indexer(context, latent, latent.indexer, hidden_size)
        self.output = RowLinear(context, spec.num_heads * latent.value_dim, hidden_size)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; stores the tokens' vectors on the way."""
        latent = self.latent
        where, plan = batch.attended(self.backend, self.kind, self.layer)
        cache, _ = batch.kv_caches[self.layer]
        kv_scales = self._kv_scales if cache.dtype in FP8 else None
        rotation = self.rotary.at(batch)
        queries = hidden_states if latent.query_rank is None else self._query_vector(hidden_states)
        if latent.indexer is not None:
            cache, index_keys = cache.split((latent.row_dim, latent.indexer.head_dim), dim=-1)
            if latent.indexer.own:
                batch.chosen = self.indexer(
                    hidden_states, queries, rotation, index_keys, where, batch, self.backend
                )
        heads = self.q if latent.query_rank is None else self.q_b
        queries = heads(queries).unflatten(-1, (-1, latent.query_dim))
        keys = self.kv_a(hidden_states)
        ops.norm_in_place(keys[:, latent.rope_dim :], self.kv_norm.weight, self.kv_norm.eps)
        q = self.backend.store(
            self.k_b(queries, latent.rope_dim, keys),
            *rotation,
            cache,
            cache,
            where.slot_mapping,
            values_are_keys=True,
            kv_scales=kv_scales,
        )
        chosen = None if latent.indexer is None else batch.chosen
        attended = self.backend.attend(
            q, cache, cache, plan, scale=self.spec.scale, kv_scales=kv_scales, chosen=chosen
        )
        # Keys' rotated part has been summed up along with the rest.
        output: torch.Tensor = self.output(self.v_b(attended[:, :, latent.rope_dim :]))
        return output

    def _query_vector(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What queries are made of, [tokens, query_rank]."""
        out: torch.Tensor = self.q_norm(self.q_a(hidden_states))
        return out
