"""Vectors and scores against plain numpy in fp64."""

import numpy as np
import pytest

from pagoda.arch.spec import PoolingSpec
from pagoda.base.errors import RequestError
from pagoda.core import vectors

RAW = np.array([3, -4, 12, 0.5], np.float32)


def test_embeddings_are_cut_first_and_normalized_then():
    found = vectors.embedding(RAW.tobytes(), PoolingSpec("mean"), None, 2)
    np.testing.assert_allclose(found, [0.6, -0.8], rtol=1e-6)
    raw = vectors.embedding(RAW.tobytes(), PoolingSpec("mean"), False, None)
    assert raw.tolist() == RAW.tolist()
    asked = vectors.embedding(RAW.tobytes(), PoolingSpec("mean", False), True, None)
    assert np.linalg.norm(asked) == pytest.approx(1)


def test_a_vector_of_zeros_stays_one():
    found = vectors.embedding(bytes(16), PoolingSpec(), None, None)
    assert found.tolist() == [0, 0, 0, 0]


def test_every_token_has_length_1():
    found = vectors.token_embeddings(RAW.tobytes(), 2, PoolingSpec("mean"), None)
    np.testing.assert_allclose(found[0], [0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1], rtol=1e-6)


@pytest.mark.parametrize("logits", [[0.0], [3.5, -2.0, 0.1], [1e4, -1e4], [-200.0, 90.0]])
def test_activations(logits: list[float]):
    raw = np.array(logits, np.float32)
    wide = raw.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = {
            "identity": wide,
            "sigmoid": 1 / (1 + np.exp(-wide)),
            "softmax": np.exp(wide - wide.max()) / np.exp(wide - wide.max()).sum(),
        }
    for name, values in expected.items():
        pooling = PoolingSpec("cls", labels=("x",) * len(logits), activation=name)
        found = vectors.scores(raw.tobytes(), pooling, None)
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-38)
        assert vectors.scores(raw.tobytes(), pooling, False).tolist() == raw.tolist()


@pytest.mark.parametrize(
    ("wanted", "known", "fine"),
    [
        (None, None, True), (4, None, True), (3, None, False), (3, (), True), (5, (), False),
        (3, (2, 3), True), (1, (2, 3), False), (4, (2, 3), True),
    ],
)  # fmt: skip
def test_dimensions(wanted: int | None, known: tuple | None, fine: bool):
    pooling = PoolingSpec(dimensions=known)
    if fine:
        vectors.check_dimensions(wanted, 4, pooling)
    else:
        with pytest.raises(RequestError) as caught:
            vectors.check_dimensions(wanted, 4, pooling)
        assert caught.value.param == "dimensions"
