"""What requests make of pooled hidden states and logits: vectors, scores and similarities."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagoda.arch.spec import PoolingSpec
from pagoda.base.errors import RequestError

Vector = npt.NDArray[np.float32]


def embedding(
    pooled: bytes, pooling: PoolingSpec, normalize: bool | None, dimensions: int | None
) -> Vector:
    """A pooled text's vector, fp32 [dimensions], as the model's pooling has it unless told."""
    return _finished(np.frombuffer(pooled, np.float32)[:dimensions], pooling, normalize)


def token_embeddings(
    pooled: bytes, size: int, pooling: PoolingSpec, normalize: bool | None
) -> Vector:
    """Vectors of all tokens, fp32 [tokens, size]."""
    return _finished(np.frombuffer(pooled, np.float32).reshape(-1, size), pooling, normalize)


def _finished(vectors: Vector, pooling: PoolingSpec, normalize: bool | None) -> Vector:
    if not (pooling.normalize if normalize is None else normalize):
        return vectors
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Vector = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def scores(logits: bytes, pooling: PoolingSpec, activated: bool | None) -> Vector:
    """A classifier's scores, fp32 [labels]; its logits where `activated` is False."""
    values = np.frombuffer(logits, np.float32)
    if activated is False or pooling.activation == "identity":
        return values
    wide = values.astype(np.float64)
    if pooling.activation == "softmax":
        powers = np.exp(wide - wide.max())
        found = powers / powers.sum()
    else:
        # exp of what is never positive: no overflow on either side of 0.
        tail = np.exp(-np.abs(wide))
        found = np.where(wide >= 0, 1, tail) / (1 + tail)
    narrow: Vector = found.astype(np.float32)
    return narrow


def cosine(first: Vector, second: Vector) -> float:
    """Cosine of two vectors of length 1; -1 to 1."""
    return float(np.clip(np.dot(first, second), -1.0, 1.0))


def cosines(first: Sequence[Vector], second: Sequence[Vector]) -> list[float]:
    """Cosines of vectors of length 1, pair by pair; one alone in `first` goes with every second."""
    if len(first) == 1:
        return [float(value) for value in np.clip(np.stack(second) @ first[0], -1.0, 1.0)]
    return [cosine(a, b) for a, b in zip(first, second, strict=True)]


def score_label(pooling: PoolingSpec, name: str) -> int | None:
    """Which of a classifier's scores says how alike two texts are; None for a model without a
    classifier, whose vectors are compared. RequestError where several labels leave none."""
    labels = pooling.labels
    if set(labels) == {"yes", "no"}:
        return labels.index("yes")  # a reranker that answers yes or no
    if len(labels) > 1:
        raise RequestError(
            f"{name} is a classifier with {len(labels)} labels, and scores need one; use "
            "/classify.",
            "model",
        )
    return 0 if labels else None


def check_dimensions(wanted: int | None, size: int, pooling: PoolingSpec) -> None:
    """RequestError for a size that the model was not trained to be cut to."""
    if wanted is None or wanted == size:
        return
    known = pooling.dimensions
    if known is None:
        raise RequestError(
            f"This model's vectors have {size} elements and cannot be shortened: it was not "
            "trained for that (Matryoshka). Leave out dimensions.",
            "dimensions",
        )
    if wanted > size or (known and wanted not in known):
        choices = ", ".join(map(str, known)) if known else f"1 to {size}"
        raise RequestError(
            f"dimensions is {wanted}; this model's vectors can have {choices}.", "dimensions"
        )
