"""Granite 4's hybrids, whose layers are Mamba-2's but for a few: logits equal to transformers',
however a prompt is cut into steps."""

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import UnsupportedModelError
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver

CASES = {
    "dense": {"num_local_experts": 0},
    "experts": {},
    "groups, no bias": {"mamba_n_groups": 2, "mamba_conv_bias": False},
    "biases": {"mamba_proj_bias": True, "num_local_experts": 0},
    "short convolution": {"mamba_d_conv": 2, "num_local_experts": 0},
    "no attention": {
        "num_local_experts": 0,
        "layer_types": ["linear_attention"] * 4,
        "use_cache": False,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal(case: str, tmp_path):
    reference = tiny.make("granite4", **{**tiny.GRANITE4_HYBRID, **CASES[case]})
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(150)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3  # else a fault could hide below the bound
    model = tiny.load(tmp_path)
    for chunk in (150, 7):
        torch.testing.assert_close(Driver(model).run(ids, chunk), expected, rtol=0, atol=1e-4)


GGUFS = {
    "dense": (
        "Q8_0",
        {"num_local_experts": 0, "mamba_n_groups": 2, "shared_intermediate_size": 64},
    ),
    "experts": ("F32", {"mamba_conv_bias": False}),
}


@pytest.mark.parametrize("case", GGUFS)
def test_gguf(case: str, tmp_path):
    storage, changes = GGUFS[case]
    reference = tiny.make("granite4", **{**tiny.GRANITE4_HYBRID, **changes})
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: tiny_gguf.Storage[storage])
    ids = tiny.random_ids(60)
    expected = tiny.reference_logits(reference, ids)
    logits = Driver(tiny.load(path)).run(ids, 13)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_gguf_with_rotation_is_refused(tmp_path):
    """llama.cpp's converter gives Bamba this architecture, whose rows it orders otherwise."""
    path = tmp_path / "model.gguf"
    reference = tiny.make("granite4", **tiny.GRANITE4_HYBRID)
    tiny_gguf.write(path, reference, lambda name: tiny_gguf.Storage.F32)
    checkpoint = GgufCheckpoint(path)
    metadata = {**checkpoint.metadata, "granitehybrid.rope.scaling.finetuned": True}
    with pytest.raises(UnsupportedModelError, match="Take Bamba in safetensors"):
        spec_for(None, metadata, checkpoint.tensors)


def test_step_sizes_with_bounds_are_refused():
    config = tiny.make("granite4", **tiny.GRANITE4_HYBRID).config.to_dict()
    config |= {"architectures": ["GraniteMoeHybridForCausalLM"], "time_step_limit": [0.1, 1.0]}
    with pytest.raises(UnsupportedModelError, match="time_step_limit"):
        spec_for(config, {}, ())
