"""Encoders' GGUF forms give what transformers gives, on tiny random checkpoints."""

import gguf
import pytest
import torch

from pagoda.base.errors import UnsupportedModelError
from tests.models import encoders, encoders_gguf, tiny

TEXTS = [[2 + id % 209 for id in tiny.random_ids(n, seed=n)] for n in (1, 7, 64, 100)]
MEAN, CLS = gguf.PoolingType.MEAN, gguf.PoolingType.CLS


MODELS = {
    "bert": ("bert", CLS, "cls"),
    "roberta": ("roberta", MEAN, "mean"),
    "nomic": ("nomic", MEAN, "mean"),
    "modernbert": ("modernbert", MEAN, "mean"),
    "modernbert, last": ("modernbert", gguf.PoolingType.LAST, "last"),
    "embeddinggemma": ("embeddinggemma", MEAN, "mean"),
}


@pytest.mark.parametrize("case", MODELS)
def test_hidden_states_equal(case, tmp_path):
    family, pooling, method = MODELS[case]
    reference = encoders.make(family)
    encoders_gguf.write(tmp_path / "model.gguf", reference, pooling)
    model = tiny.load(tmp_path / "model.gguf")
    assert model.spec.pooling.method == method
    found = encoders.hidden_states(model, TEXTS)
    for ids, states in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "changes", "method"),
    [("roberta classifier", {}, "cls"), ("modernbert classifier", {}, "cls"),
     ("modernbert classifier", {"classifier_pooling": "mean"}, "mean")],
)  # fmt: skip
def test_scores_equal(family, changes, method, tmp_path):
    reference = encoders.make(family, num_labels=1, **changes)
    encoders_gguf.write(tmp_path / "model.gguf", reference, gguf.PoolingType.RANK)
    model = tiny.load(tmp_path / "model.gguf")
    assert model.spec.pooling.method == method and model.spec.pooling.activation == "sigmoid"
    states = encoders.hidden_states(model, TEXTS)
    pooled = [rows[0] if method == "cls" else rows.mean(0) for rows in states]
    with torch.inference_mode():
        found = model.classify(torch.stack(pooled).to(tiny.DEVICE)).cpu()
        expected = torch.stack([reference(torch.tensor([ids])).logits[0] for ids in TEXTS])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_classifier_without_its_dense_layer(tmp_path, monkeypatch):
    """llama.cpp's converter leaves out BERT's pooler, and scores by the last layer alone."""
    monkeypatch.delitem(encoders_gguf.BERT, "classifier.dense")
    monkeypatch.setattr(encoders_gguf, "LEFT_OUT", ("classifier.dense", "pooler.dense"))
    reference = encoders.make("roberta classifier", num_labels=1)
    encoders_gguf.write(tmp_path / "model.gguf", reference, gguf.PoolingType.RANK)
    with pytest.raises(UnsupportedModelError, match="without the dense layer"):
        tiny.load(tmp_path / "model.gguf")
