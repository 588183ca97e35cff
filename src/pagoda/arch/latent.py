"""Multi-head latent attention: what its layers have beside `AttentionSpec`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class IndexerSpec:
    """Sparse attention (DeepSeek V3.2): a query at position `count` or later sees the `count`
    tokens, up to its own, that score highest with queries and keys of the indexer's own. Its
    queries are made of the vector that attention's are made of, and each token has one key."""

    num_heads: int
    head_dim: int
    """The first ones are rotated, as many as of attention's keys."""
    count: int
    own: bool = True
    """Else the layer sees what the last one with an indexer chose, and its key is not stored."""


@dataclass(frozen=True)
class LatentSpec:
    """Keys and values of all heads are made of one vector per token (arXiv 2405.04434, section
    2.1), and only that is cached, beside a part of the keys that is rotated and is the same for all
    heads. What would make keys of it is multiplied with the queries instead, and what would make
    values of it with the sums: so all heads share one KV head, whose values are its keys."""

    rank: int
    """Size of that vector, which is normalized."""
    rope_dim: int
    """Size of the rotated part, which is first in each key of the cache."""
    key_dim: int
    """Size of a head's keys besides that part."""
    value_dim: int
    query_rank: int | None = None
    """Size of a normalized vector that queries are made of; None: they are made of what the layer
    reads."""
    norm_eps: float = 1e-6
    indexer: IndexerSpec | None = None
    """Its key is cached behind the vector."""

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query before the product: the rotated ones first."""
        return self.rope_dim + self.key_dim

    @property
    def row_dim(self) -> int:
        """Numbers of a token in the cache that attention reads: the rotated ones first."""
        return self.rope_dim + self.rank

    @property
    def cached_dim(self) -> int:
        """All numbers of a token in the cache."""
        return self.row_dim + (0 if self.indexer is None else self.indexer.head_dim)
