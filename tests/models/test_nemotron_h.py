"""Nemotron-H's blocks of one part each: logits equal to transformers', however a prompt is cut into
steps, with experts and without, and from GGUF."""

import pytest
import torch

from pagoda.arch.recurrent import Mamba2Spec
from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.kernels import cpu
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver

CASES = {
    "dense": tiny.NEMOTRON_H,
    "experts": tiny.NEMOTRON_H_MOE,
    "biases": {**tiny.NEMOTRON_H, "use_bias": True, "mlp_bias": True, "use_conv_bias": False},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal(case: str, tmp_path):
    reference = tiny.make("nemotron_h", **CASES[case])
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(90)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3  # else a fault could hide below the bound
    model = tiny.load(tmp_path)
    for chunk in (90, 7):
        torch.testing.assert_close(Driver(model).run(ids, chunk), expected, rtol=0, atol=1e-4)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built")
def test_packed_weights_give_the_same_bits_in_any_chunks(tmp_path):
    reference = tiny.make("nemotron_h", **tiny.NEMOTRON_H_MOE)
    reference.save_pretrained(tmp_path)
    model = tiny.load(tmp_path, packed=True)
    ids = tiny.random_ids(60)
    whole = Driver(model).run(ids, 60)
    expected = tiny.reference_logits(reference, ids)
    assert (whole - expected).abs().mean() < 0.02 * expected.std()
    for chunk in (1, 7):
        assert torch.equal(Driver(model).run(ids, chunk), whole)


@pytest.mark.parametrize("case", ["dense", "experts"])
@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
def test_gguf(case: str, storage: str, tmp_path):
    reference, path = tiny.make("nemotron_h", **CASES[case]), tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: tiny_gguf.Storage[storage])
    ids = tiny.random_ids(60)
    expected = tiny.reference_logits(reference, ids)
    logits = Driver(tiny.load(path)).run(ids, 13)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


# The fields of nvidia/NVIDIA-Nemotron-Nano-9B-v2's config.json that say what is computed.
NANO_9B_V2 = {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "conv_kernel": 4,
    "eos_token_id": 12, "head_dim": 128, "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "intermediate_size": 15680, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 80,
    "mamba_hidden_act": "silu", "mamba_num_heads": 128, "max_position_embeddings": 131072,
    "mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 40, "num_hidden_layers": 56,
    "num_key_value_heads": 8, "ssm_state_size": 128, "tie_word_embeddings": False,
    "time_step_limit": [0.0, float("inf")], "use_bias": False, "use_conv_bias": True,
    "vocab_size": 131072,
}  # fmt: skip


def test_the_published_files():
    spec = spec_for(NANO_9B_V2, {}, ())
    mamba = [isinstance(layer.mixer, Mamba2Spec) for layer in spec.layers]
    assert (mamba.count(True), mamba.count(False)) == (27, 4)
    assert sum(not layer.feeds_forward for layer in spec.layers) == 6
    assert spec.layers[0].mixer == Mamba2Spec(128, 80, 128, 8, 4, 1e-5)
    rules = {rule.param: rule.sources for rule in spec.expanded_weights()}
    assert rules["layers.3.mamba2.input.weight"] == ("backbone.layers.6.mixer.in_proj.weight",)
    assert rules["layers.30.mlp.down.weight"] == ("backbone.layers.55.mixer.down_proj.weight",)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hybrid_override_pattern": "-M*"}, UnsupportedModelError, "Block 0"),
        ({"hybrid_override_pattern": "MX"}, CheckpointError, "hybrid_override_pattern"),
        ({"mlp_hidden_act": "silu"}, UnsupportedModelError, "mlp_hidden_act"),
        ({"moe_latent_size": 64}, UnsupportedModelError, "moe_latent_size"),
    ],
)
def test_other_kinds_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        spec_for({**NANO_9B_V2, **change}, {}, ())
