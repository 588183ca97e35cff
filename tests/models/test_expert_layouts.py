"""Mixtures of experts load in every layout and format that they are published in, and say what
transformers says with the weights that the quantizer's own package reads back."""

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.kernels import ops
from pagoda.layers.moe import ExpertMatrices
from pagoda.planner.weights import held_weights
from pagoda.weights.files import open_model
from tests.models import expert_layouts, published, tiny
from tests.models.driver import Driver
from tests.models.expert_layouts import FAMILIES, FORMATS

IDS = tiny.random_ids(12, vocab_size=200)
CASES = [
    (family, layout, format)
    for family in FAMILIES
    for format, found in FORMATS.items()
    for layout in found.layouts
]


@pytest.mark.parametrize(("family", "layout", "format"), CASES)
def test_each_layout_of_each_format(family, layout, format, tmp_path):
    reference = expert_layouts.write(tmp_path, family, layout, FORMATS[format])
    model = published.load(tmp_path)
    expected = tiny.reference_logits(reference, IDS)
    assert expected.std() > 0.1  # else a fault could hide below the bound
    torch.testing.assert_close(Driver(model).run(IDS, 12), expected, rtol=0, atol=1e-4)
    checkpoint = open_model(tmp_path).checkpoint
    kinds = {
        info.type
        for name, info in checkpoint.tensors.items()
        if ".experts." in name and len(info.shape) > 1 and "bias" not in name
    }
    assert kinds == {FORMATS[format].storage}
    if ops.packed_storages():
        assert loaded_bytes(published.load(tmp_path, packed=True)) == planned_bytes(tmp_path)


def loaded_bytes(model) -> int:
    """Of experts."""
    return sum(part.nbytes for part in model.modules() if isinstance(part, ExpertMatrices))


def planned_bytes(folder) -> float:
    files = open_model(folder)
    tensors = files.checkpoint.tensors
    spec = spec_for(files.config, files.metadata, tensors)
    held = held_weights(spec, tensors, "float32", ops.packed_storages())
    return sum(part.nbytes for part in held if part.tensor.role == "experts")
