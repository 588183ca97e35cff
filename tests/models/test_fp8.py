"""fp8 checkpoints in blocks, rounded and read back by transformers (its form of DeepSeek's)."""

from types import SimpleNamespace

import pytest
import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from pagoda.kernels import cpu
from pagoda.weights.files import open_model
from tests.models import published, tiny
from tests.models.driver import Driver

# Rows by 16, as the panels of packed matrices are: so their bytes are those of the plan.
SIZES = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": 208}
IDS = tiny.random_ids(40, vocab_size=208)
CASES = {
    "blocks": {"weight_block_size": [64, 64]},
    "small blocks": {"weight_block_size": [16, 32]},
    "powers of two": {"weight_block_size": [32, 64], "scale_fmt": "ue8m0"},
    "whole": {"weight_block_size": None},
}


def write(folder, options: dict) -> tuple:
    """(twin with the weights that transformers reads back, these weights by layer)."""
    twin = tiny.make("llama", **SIZES)
    quantizer = SimpleNamespace(quantization_config=FineGrainedFP8Config(**options))
    layers, weights = {}, {}
    for name, linear in published.linears(twin).items():
        parts = Fp8Quantize(quantizer).convert({"weight": linear.weight.detach()})
        layers[name] = {key.rpartition(".")[2]: value for key, value in parts.items()}
        weights[name] = Fp8Dequantize(quantizer).convert(dict(layers[name]))["weight"]
    published.save(folder, twin, layers, quantizer.quantization_config.to_dict())
    with torch.no_grad():
        for name, linear in published.linears(twin).items():
            linear.weight.copy_(weights[name])
    return twin, weights


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits_equal(case, tmp_path):
    twin, weights = write(tmp_path, CASES[case])
    checkpoint = open_model(tmp_path).checkpoint
    for name, expected in weights.items():
        assert checkpoint.tensors[f"{name}.weight"].type == "FP8"
        ours = published.decoded(checkpoint, f"{name}.weight", expected.dtype)
        assert torch.equal(ours, expected)
    logits = Driver(published.load(tmp_path)).run(IDS, chunk=40)
    torch.testing.assert_close(logits, tiny.reference_logits(twin, IDS), rtol=0, atol=1e-4)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
def test_packed_weights_stay_close(tmp_path):
    twin, _ = write(tmp_path, CASES["blocks"])
    model = published.load(tmp_path, packed=True)
    expected = tiny.reference_logits(twin, IDS)
    # What these wild weights make of 8-bit activations; the default model's are far tamer.
    assert published.relative_error(Driver(model).run(IDS, chunk=40), expected) < 0.07
    assert model.nbytes == published.planned_bytes(tmp_path)


def test_row_parallel_slices(tmp_path):
    _, weights = write(tmp_path, CASES["blocks"])
    checkpoint = open_model(tmp_path).checkpoint
    name = "model.layers.0.mlp.down_proj"
    part = published.decoded(
        checkpoint, f"{name}.weight", torch.float32, slice(5, 90), slice(96, 160)
    )
    assert torch.equal(part, weights[name][5:90, 96:160])
