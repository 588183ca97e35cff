"""Multi-head latent attention: what its layers have beside `AttentionSpec`."""

from dataclasses import dataclass


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

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query before the product: the rotated ones first."""
        return self.rope_dim + self.key_dim
