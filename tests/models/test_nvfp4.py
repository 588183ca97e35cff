"""NVFP4 checkpoints: what the package compressed-tensors writes and reads, and ModelOpt's, whose
numbers are worked out here from the formats' definitions."""

import json

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeForCausalLM

from pagoda.base.errors import CheckpointError
from pagoda.kernels import cpu, ops
from pagoda.quant.repack import repacked
from pagoda.weights.files import open_model
from tests.models import published, tiny
from tests.models.driver import Driver

# Rows by 16, as the panels of packed matrices are: so their bytes are those of the plan.
SIZES = {"hidden_size": 256, "intermediate_size": 192, "vocab_size": 208}
IDS = tiny.random_ids(40, vocab_size=208)
FORMAT = "nvfp4-pack-quantized"
Parts = dict[str, torch.Tensor]


def compressed(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """As the package compresses and decompresses them, before it rounds to bf16."""
    scheme = preset_name_to_scheme("NVFP4", ["Linear"])
    compressor = BaseCompressor.get_value_from_registry(FORMAT)
    whole = generate_gparam(weight.amin().view(1), weight.amax().view(1))
    groups = weight.unflatten(1, (-1, 16))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, whole)
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
    parts = compressor.compress(state, scheme)
    numbers = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape, torch.float32)
    decoded = dequantize(
        numbers, parts["weight_scale"].float(), args=scheme.weights, global_scale=whole
    )
    decompressed = compressor.decompress(dict(parts), scheme)["weight"]
    assert torch.equal(decoded.to(decompressed.dtype), decompressed)
    return {**parts, "input_global_scale": torch.tensor([10.0])}, decoded


def compressed_config() -> dict:
    scheme: QuantizationScheme = preset_name_to_scheme("NVFP4", ["Linear"])
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=FORMAT, ignore=["lm_head"],
        quantization_status="compressed",
    )  # fmt: skip
    return config.model_dump(mode="json")


CASES = {
    "modelopt": (
        published.modelopt,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    ),
    "compressed-tensors": (compressed, compressed_config()),
}  # fmt: skip


def write(folder, case: str, **sizes) -> tuple:
    """(twin with the weights that the checkpoint says, these by layer)."""
    quantized, config = CASES[case]
    twin = tiny.make("llama", **SIZES | sizes)
    layers, weights = {}, {}
    for name, linear in published.linears(twin).items():
        layers[name], weights[name] = quantized(linear.weight.detach())
    published.save(folder, twin, layers, config)
    with torch.no_grad():
        for name, linear in published.linears(twin).items():
            linear.weight.copy_(weights[name])
    return twin, weights


def assert_equal(ours: torch.Tensor, expected: torch.Tensor, case: str) -> None:
    """compressed-tensors divides each scale by the whole's, we multiply with its inverse."""
    bits = 2 * torch.finfo(torch.float32).eps if case == "compressed-tensors" else 0.0
    torch.testing.assert_close(ours, expected, rtol=bits, atol=0)
    assert torch.equal(ours.bfloat16(), expected.bfloat16())


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits_equal(case, tmp_path):
    twin, weights = write(tmp_path, case)
    checkpoint = open_model(tmp_path).checkpoint
    for name, expected in weights.items():
        assert checkpoint.tensors[f"{name}.weight"].type == "FP4"
        assert_equal(published.decoded(checkpoint, f"{name}.weight", torch.float32), expected, case)
    logits = Driver(published.load(tmp_path)).run(IDS, chunk=40)
    torch.testing.assert_close(logits, tiny.reference_logits(twin, IDS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_slices(case, tmp_path):
    _, weights = write(tmp_path, case)
    checkpoint = open_model(tmp_path).checkpoint
    name = "model.layers.0.mlp.down_proj"
    part = published.decoded(
        checkpoint, f"{name}.weight", torch.float32, slice(5, 90), slice(96, 160)
    )
    assert_equal(part, weights[name][5:90, 96:160], case)


def test_rows_that_end_within_a_block(tmp_path):
    """Groups of 16 may be of an odd number."""
    sizes = {"hidden_size": 112, "intermediate_size": 48, "num_attention_heads": 7,
             "num_key_value_heads": 7, "head_dim": 16}  # fmt: skip
    _, weights = write(tmp_path, "modelopt", **sizes)
    checkpoint = open_model(tmp_path).checkpoint
    name = "model.layers.0.mlp.down_proj"
    assert checkpoint.tensors[f"{name}.weight"].type == "DECODED"
    for columns in (slice(0, 48), slice(5, 31)):
        part = published.decoded(checkpoint, f"{name}.weight", torch.float32, slice(3, 90), columns)
        assert torch.equal(part, weights[name][3:90, columns])


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("case", CASES)
def test_packed_weights_stay_close(case, tmp_path):
    twin, _ = write(tmp_path, case)
    model = published.load(tmp_path, packed=True)
    held = {matrix.storage for matrix in model.layers[0].mlp.gate_up.format._matrices}
    narrow = {matrix.storage for matrix in model.layers[0].mlp.down.format._matrices}
    assert (held, narrow) == ({"Q6_K"}, {"Q8_0"})  # of 256 columns, and of 192
    expected = tiny.reference_logits(twin, IDS)
    # What these wild weights make of 8-bit activations; the default model's are far tamer.
    assert published.relative_error(Driver(model).run(IDS, chunk=40), expected) < 0.07
    assert model.nbytes == published.planned_bytes(tmp_path)


def test_held_in_six_bits_nothing_but_the_scales_is_rounded():
    """By the gguf package's reading of Q6_K; scales of fp16 are within half of their last bit."""
    torch.manual_seed(0)
    parts, expected = published.modelopt(torch.randn(64, 1024))
    raw = blocks(parts)
    held = repacked(raw, "FP4", "Q6_K").numpy()
    found = torch.from_numpy(quants.dequantize(held, GGMLQuantizationType.Q6_K))
    torch.testing.assert_close(found, expected, rtol=2.0**-11, atol=0)


def test_scales_that_seven_bits_cannot_tell_apart_are_rounded():
    """Within half a step, of which the largest of 256 columns has 64 at least."""
    torch.manual_seed(0)
    sizes = torch.logspace(0, -4, 64).repeat_interleave(16)
    parts, expected = published.modelopt(torch.randn(16, 1024) * sizes)
    held = repacked(blocks(parts), "FP4", "Q6_K").numpy()
    found = torch.from_numpy(quants.dequantize(held, GGMLQuantizationType.Q6_K))
    largest = expected.unflatten(1, (-1, 256)).abs().amax(-1, keepdim=True)
    apart = (found - expected).unflatten(1, (-1, 256)).abs()
    assert 0 < (apart / largest).max() <= 0.5 / 64 + 2.0**-11


def test_scales_that_are_nan_are_refused():
    parts, _ = published.modelopt(torch.randn(16, 256))
    raw = blocks(parts)
    raw[3, 4] = 0x7F
    with pytest.raises(CheckpointError, match="NaN"):
        repacked(raw, "FP4", "Q6_K")


def blocks(parts: Parts) -> torch.Tensor:
    """A ModelOpt layer in the blocks of FP4."""
    rows, half = parts["weight"].shape
    codes = torch.stack((parts["weight"] & 15, parts["weight"] >> 4), -1).view(rows, -1, 32)
    count = half // 16
    whole = parts["weight_scale_2"].view(1).view(torch.uint8).expand(rows, count, 4)
    scales = parts["weight_scale"].view(torch.uint8).view(rows, count, 2)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((whole, scales, packed), -1).flatten(1)


def test_experts(tmp_path):
    """Each expert's matrices have scales of their own."""
    quantized, decoded = tmp_path / "quantized", tmp_path / "decoded"
    sizes = {**tiny.QWEN3_MOE, **SIZES, "num_experts": 16, "moe_intermediate_size": 64}
    for folder in (quantized, decoded):
        tiny.make("qwen3_moe", **sizes).save_pretrained(folder)
    packed, plain = {}, {}
    for name, weight in load_file(quantized / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = weight
            continue
        parts, plain[name] = published.modelopt(weight)
        packed |= {f"{name.rpartition('.')[0]}.{part}": value for part, value in parts.items()}
    save_file(packed, quantized / "model.safetensors")
    save_file(plain, decoded / "model.safetensors", {"format": "pt"})
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = CASES["modelopt"][1]
    (quantized / "config.json").write_text(json.dumps(config))
    assert any("experts.3.down_proj.weight_scale_2" in name for name in packed)
    expected = tiny.reference_logits(Qwen3MoeForCausalLM.from_pretrained(decoded).eval(), IDS)
    logits = Driver(published.load(quantized)).run(IDS, chunk=40)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    if ops.packed_storages():
        model = published.load(quantized, packed=True)
        assert model.nbytes == published.planned_bytes(quantized)


def test_the_quantization_in_a_file_of_its_own(tmp_path):
    """As ModelOpt's early checkpoints have it."""
    _, weights = write(tmp_path, "modelopt")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    told = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": told}))
    files = open_model(tmp_path)
    assert files.config["quantization_config"]["quant_method"] == "modelopt"
    name = "model.layers.1.self_attn.o_proj"
    ours = published.decoded(files.checkpoint, f"{name}.weight", torch.float32)
    assert torch.equal(ours, weights[name])
