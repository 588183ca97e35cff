"""Replies of the routes that give vectors or scores."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class PoolingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int] | None = None


class _List(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str


class Embedding(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class Embeddings(_List, kw_only=True):
    data: list[Embedding]
    usage: PoolingUsage


class Pooled(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float | list[float]] | str
    """A vector, or one per token."""


class PooledList(_List, kw_only=True):
    data: list[Pooled]
    usage: PoolingUsage


class Classification(msgspec.Struct, kw_only=True):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classifications(_List, kw_only=True):
    data: list[Classification]
    usage: PoolingUsage


class Score(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class Scores(_List, kw_only=True):
    data: list[Score]
    usage: PoolingUsage


class RankedDocument(msgspec.Struct, kw_only=True):
    index: int
    document: dict[str, Any] | UnsetType = UNSET
    relevance_score: float


class Ranking(_List, kw_only=True):
    results: list[RankedDocument]
    usage: PoolingUsage


class RankedText(msgspec.Struct, kw_only=True):
    """Text Embeddings Inference's; a list of these is its reply."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class NativeEmbedding(msgspec.Struct, kw_only=True):
    """llama-server's; a list of these is its reply."""

    index: int
    embedding: list[list[float]]
