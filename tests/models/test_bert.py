"""Encoders equal transformers' on tiny random checkpoints that transformers saved."""

import json

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels import ops
from pagoda.planner.memory.tensors import parameter_count
from tests.models import encoders, tiny

CASES = {
    "bert": ("bert", {}),
    "bert, other sizes": ("bert", {"num_attention_heads": 2, "intermediate_size": 200}),
    "bert, gelu_new": ("bert", {"hidden_act": "gelu_new"}),
    "bert, relu": ("bert", {"hidden_act": "relu"}),
    "roberta": ("roberta", {"type_vocab_size": 1}),
    "roberta, padding 0": ("roberta", {"pad_token_id": 0}),
    "xlm-roberta": ("xlm-roberta", {}),
    "modernbert": ("modernbert", {}),
    "modernbert, every layer sees all": ("modernbert", {"global_attn_every_n_layers": 1}),
    "nomic": ("nomic", {}),
    "embeddinggemma": ("embeddinggemma", {}),
}
LENGTHS = (1, 7, 64, 100)


def _texts() -> list[list[int]]:
    """Without the ids of padding, which RoBERTa does not give a position."""
    return [[2 + id % 209 for id in tiny.random_ids(n, seed=n)] for n in LENGTHS]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_hidden_states_equal(case: str, packed: bool, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    family, changes = CASES[case]
    reference = encoders.make(family, **changes)
    reference.save_pretrained(tmp_path)
    texts = _texts()
    found = encoders.hidden_states(tiny.load(tmp_path, packed=packed), texts)
    for ids, states in zip(texts, found, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "labels"),
    [("bert classifier", 1), ("bert classifier", 5), ("roberta classifier", 3),
     ("xlm-roberta classifier", 1), ("modernbert classifier", 1), ("modernbert classifier", 4)],
)  # fmt: skip
def test_logits_of_pairs_equal(family: str, labels: int, tmp_path):
    reference = encoders.make(family, num_labels=labels)
    reference.save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    texts = _texts()
    typed = family.startswith("bert")
    types = [[int(typed and at > len(ids) // 3) for at in range(len(ids))] for ids in texts]
    states = encoders.hidden_states(model, texts, types)
    with torch.inference_mode():
        found = model.classify(torch.stack([rows[0] for rows in states]).to(tiny.DEVICE)).cpu()
        expected = [
            reference(torch.tensor([ids]), token_type_ids=torch.tensor([kinds])).logits[0]
            for ids, kinds in zip(texts, types, strict=True)
        ]
    assert found.shape == (len(texts), labels)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-4)


def test_a_text_is_not_changed_by_its_neighbours(tmp_path):
    encoders.make("bert").save_pretrained(tmp_path)
    model = tiny.load(tmp_path, packed=ops.can_pack("cpu"))
    texts = _texts()
    together = encoders.hidden_states(model, texts)
    for ids, states in zip(texts, together, strict=True):
        (alone,) = encoders.hidden_states(model, [ids])
        torch.testing.assert_close(states, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key' positions"),
        ({"is_decoder": True}, "is_decoder"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict, message: str, tmp_path):
    reference = encoders.make("bert")
    for name, value in changes.items():
        setattr(reference.config, name, value)
    reference.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=message):
        tiny.load(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "left_out"),
    # Poolers that no vector needs; Nomic's is not saved.
    [("bert", {}, 64 * 65), ("modernbert", {}, 0), ("nomic", {}, 0),
     ("modernbert classifier", {"num_labels": 3}, 0)],
)  # fmt: skip
def test_parameters_are_those_of_transformers(family, changes, left_out):
    model = encoders.make(family, **changes)
    config = json.loads(model.config.to_json_string())
    spec = spec_for({**config, "architectures": [type(model).__name__]}, {}, ())
    assert parameter_count(spec) == model.num_parameters() - left_out
