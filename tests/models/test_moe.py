"""Mixtures of experts as checkpoints hold them, plain and packed, against transformers."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError
from pagoda.kernels import cpu, ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.tiny_gguf import Storage

FAMILIES = {
    "qwen3_moe": tiny.QWEN3_MOE,
    "gpt_oss": tiny.GPT_OSS,
    "gemma4": tiny.GEMMA4_MOE,
}
ISA = "none" if cpu.native() is None else cpu.native().isa
# What activations are rounded to beside weights in Q8_0, and beside weights in BF16: in
# random models rounding turns some of the routers' choices.
Q8_0_BOUND = 0.1 if ISA == "avx2" else 0.15  # 16 bits, or 8 with a scale for each 16 columns
BF16_BOUND = 0.1 if ISA in ("amx", "avx512") else 0.05  # bf16, or not at all


def error_of(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return ((logits - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_says_nearly_the_same(family, tmp_path):
    reference = tiny.make(family, **FAMILIES[family])
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(60)
    logits = Driver(tiny.load(tmp_path, packed=True)).run(ids, 60)
    assert error_of(logits, tiny.reference_logits(reference, ids)) < 0.02


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("storage", ["Q8_0", "MXFP4"])
def test_packed_logits_are_the_same_whatever_the_batch(family, storage, tmp_path):
    # GGUFs have the published models' limit.
    reference = tiny.make(family, **{**FAMILIES[family], "swiglu_limit": 7.0})
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[storage if "exps" in name else "Q8_0"])
    model = tiny.load(path, packed=True)
    ids = tiny.random_ids(50)
    whole = Driver(model).run(ids, 50)
    assert error_of(whole, tiny.reference_logits(reference, ids)) < Q8_0_BOUND
    for chunk in (1, 7):
        assert torch.equal(Driver(model).run(ids, chunk), whole)
    driver = Driver(model, num_blocks=256)
    together = [driver.step({"r": ids[i : i + 5], f"n{i}": ids[: i + 1]})["r"]
                for i in range(0, 50, 5)]  # fmt: skip
    assert torch.equal(torch.cat(together), whole)


def _mxfp4(folder, reference) -> dict[str, torch.Tensor]:
    """Saves a gpt-oss whose experts are random MXFP4, and gives it their values; the tensors."""
    reference.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["GptOssForCausalLM"], "dtype": "float32"}
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(4)
    tensors = {}
    for name, weight in reference.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = weight.clone()
            continue
        count, columns, rows = weight.shape
        shape = (count, rows, columns // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 126, shape, generator=generator, dtype=torch.uint8)
        weight.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_mxfp4_is_decoded_as_transformers_does(tmp_path):
    reference = tiny.make("gpt_oss", **tiny.GPT_OSS)
    _mxfp4(tmp_path, reference)
    checkpoint = open_model(tmp_path).checkpoint
    for name in ("gate_up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.{name}"
        info = checkpoint.tensors[name]
        expected = reference.state_dict()[name].transpose(1, 2)
        assert (info.type, info.shape) == ("MXFP4", tuple(expected.shape))
        whole = torch.from_numpy(checkpoint.read(name))
        assert whole.numel() == info.nbytes
        decoded = ops.dequantize(whole, "MXFP4").view(info.shape)
        assert torch.equal(decoded, expected)
        some = torch.from_numpy(checkpoint.read(name, slice(50, 150), slice(32, 64)).copy())
        assert torch.equal(ops.dequantize(some, "MXFP4"), expected.flatten(0, 1)[50:150, 32:])
        checkpoint.release(name)


@pytest.mark.parametrize("packed", [False, True])
def test_mxfp4_logits(packed, tmp_path):
    reference = tiny.make("gpt_oss", **tiny.GPT_OSS)
    _mxfp4(tmp_path, reference)
    ids = tiny.random_ids(80)
    expected = tiny.reference_logits(reference, ids)
    model = tiny.load(tmp_path, packed=packed)
    logits = Driver(model).run(ids, 33)
    if not packed or cpu.native() is None:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        return
    assert error_of(logits, expected) < 0.1
    gate_up = model.layers[0].mlp.gate_up.format.operand(None)
    assert {part.storage for part in gate_up.parts} == {"MXFP4"}


@pytest.mark.parametrize(
    "change",
    [
        lambda blocks, scales: (blocks[..., :8], scales),
        lambda blocks, scales: (blocks, scales[:, :-1]),
        lambda blocks, scales: (blocks, scales.float()),
    ],
)
def test_broken_mxfp4_is_an_error(change, tmp_path):
    tensors = _mxfp4(tmp_path, tiny.make("gpt_oss", **tiny.GPT_OSS))
    name = "model.layers.0.mlp.experts.down_proj"
    blocks, scales = change(tensors[name + "_blocks"], tensors[name + "_scales"])
    tensors |= {name + "_blocks": blocks.contiguous(), name + "_scales": scales.contiguous()}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"0\.mlp\.experts\.down_proj_blocks.*no MXFP4"):
        tiny.load(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_dummy_weights(family, tmp_path):
    """From config.json alone; the same again, and in a rank's slices."""
    reference = tiny.make(family, **FAMILIES[family])
    reference.config.architectures = [type(reference).__name__]
    reference.config.save_pretrained(tmp_path)
    spec = spec_for(json.loads((tmp_path / "config.json").read_text()), {}, ())
    logits = []
    for packed in (False, False, True):
        options = {"dtype": torch.float32, "device": "cpu"}
        model = build_model(spec, Dummy(), packed=packed, **options)
        logits.append(Driver(model).run(tiny.random_ids(20), 20))
        assert np.isfinite(logits[-1].numpy()).all()
    assert torch.equal(logits[0], logits[1])
    assert error_of(logits[2], logits[0]) < BF16_BOUND
