"""Checkpoints that the package compressed-tensors compressed, against what it decompresses."""

import json
from dataclasses import dataclass

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeForCausalLM

from pagoda.kernels import cpu, ops
from pagoda.weights.files import open_model
from tests.models import published, tiny
from tests.models.driver import Driver

# Rows by 16, as the panels of packed matrices are: so their bytes are those of the plan.
SIZES = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": 208}
IDS = tiny.random_ids(40, vocab_size=208)


@dataclass(frozen=True)
class Case:
    format: str
    weights: dict
    storage: str
    """That the layers become."""
    held: str
    """The storage format of the native kernels that holds it."""
    activations: dict | None = None


GROUP = {"strategy": "group", "group_size": 32}
WIDE = {"strategy": "group", "group_size": 64}
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
DYNAMIC = {"num_bits": 8, "strategy": "token", "dynamic": True}
FP8 = {"num_bits": 8, "type": "float"}
CASES = {
    "w4a16": Case("pack-quantized", {"num_bits": 4, **GROUP}, "INT4", "Q4_0"),
    "w4a16 of 64": Case("pack-quantized", {"num_bits": 4, **WIDE}, "INT4", "Q4_0"),
    "w4a16 of 16": Case(
        "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 16}, "DECODED", "Q8_0"
    ),
    "w4a16 channels": Case(
        "pack-quantized", {"num_bits": 4, "strategy": "channel"}, "INT4", "Q4_0"
    ),
    "w4a16 asymmetric": Case(
        "pack-quantized", {"num_bits": 4, "symmetric": False, **WIDE}, "UINT4", "Q4_1"
    ),
    "w4a16 asymmetric channels": Case(
        "pack-quantized", {"num_bits": 4, "symmetric": False, "strategy": "channel"},
        "UINT4", "Q4_1",
    ),
    "w3a16": Case("pack-quantized", {"num_bits": 3, **WIDE}, "INT4", "Q4_0"),
    "w3a16 asymmetric": Case(
        "pack-quantized", {"num_bits": 3, "symmetric": False, **GROUP}, "UINT4", "Q4_1"
    ),
    "w2a16": Case("pack-quantized", {"num_bits": 2, **GROUP}, "INT4", "Q4_0"),
    "w8a16": Case("pack-quantized", {"num_bits": 8, **WIDE}, "INT8", "Q8_0"),
    "w8a16 asymmetric": Case(
        "pack-quantized", {"num_bits": 8, "symmetric": False, **GROUP}, "DECODED", "Q8_0"
    ),
    "w8a8": Case(
        "int-quantized", {"num_bits": 8, "strategy": "channel"}, "INT8", "Q8_0", DYNAMIC
    ),
    "w8a8 tensor": Case(
        "int-quantized", {"num_bits": 8, "strategy": "tensor"}, "INT8", "Q8_0", DYNAMIC
    ),
    "w8a8 asymmetric": Case(
        "int-quantized", {"num_bits": 8, "symmetric": False, "strategy": "channel"},
        "DECODED", "Q8_0", DYNAMIC,
    ),
    "fp8 static": Case("float-quantized", {**FP8, "strategy": "tensor"}, "FP8", "Q8_0", STATIC),
    "fp8 dynamic": Case("float-quantized", {**FP8, "strategy": "channel"}, "FP8", "Q8_0", {
        **FP8, "strategy": "token", "dynamic": True
    }),
    "fp8 blocks": Case(
        "float-quantized", {**FP8, "strategy": "block", "block_structure": [32, 64]},
        "FP8", "Q8_0",
    ),
    # Blocks that the matrices do not fill: 208 of q's rows are 128, columns 128 and 192.
    "fp8 ragged blocks": Case(
        "float-quantized", {**FP8, "strategy": "block", "block_structure": [48, 160]},
        "FP8", "Q8_0",
    ),
}  # fmt: skip


def extremes(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest weight for each scale."""
    if args.strategy == "tensor":
        parts = weight.reshape(1, -1)
        return parts.amin(1), parts.amax(1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == "group":
        parts = weight.unflatten(1, (-1, args.group_size))
        return parts.amin(2), parts.amax(2)
    height, width = args.block_structure
    rows = [
        [part.reshape(-1) for part in strip.split(width, 1)] for strip in weight.split(height, 0)
    ]
    return (
        torch.stack([torch.stack([part.min() for part in row]) for row in rows]),
        torch.stack([torch.stack([part.max() for part in row]) for row in rows]),
    )


def write(folder, case: Case, dtype: torch.dtype = torch.float32) -> tuple:
    """(twin with the weights that the package decompresses, these by layer)."""
    twin = tiny.make("llama", **SIZES)
    activations = None if case.activations is None else QuantizationArgs(**case.activations)
    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**case.weights), input_activations=activations
    )
    compressor = BaseCompressor.get_value_from_registry(case.format)
    layers, weights = {}, {}
    for name, linear in published.linears(twin).items():
        weight = linear.weight.detach()
        scale, zero = calculate_qparams(*extremes(weight, scheme.weights), scheme.weights)
        state = {"weight": weight, "weight_scale": scale.to(dtype)}
        if not scheme.weights.symmetric:
            state["weight_zero_point"] = zero.round().to(torch.int8)
        layers[name] = compressor.compress(state, scheme)
        weights[name] = compressor.decompress(dict(layers[name]), scheme)["weight"]
        if case.activations is STATIC:
            layers[name]["input_scale"] = torch.tensor([0.1])
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=case.format, ignore=["lm_head"],
        quantization_status="compressed",
    )  # fmt: skip
    published.save(folder, twin, layers, config.model_dump(mode="json"))
    with torch.no_grad():
        for name, linear in published.linears(twin).items():
            linear.weight.copy_(weights[name])
    return twin, weights


@pytest.mark.parametrize("case", CASES)
def test_weights_and_logits_equal(case, tmp_path):
    twin, weights = write(tmp_path, CASES[case])
    checkpoint = open_model(tmp_path).checkpoint
    for name, expected in weights.items():
        assert checkpoint.tensors[f"{name}.weight"].type == CASES[case].storage
        ours = published.decoded(checkpoint, f"{name}.weight", expected.dtype)
        assert torch.equal(ours, expected)
    logits = Driver(published.load(tmp_path)).run(IDS, chunk=40)
    torch.testing.assert_close(logits, tiny.reference_logits(twin, IDS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["w4a16", "w4a16 asymmetric", "w8a16"])
def test_scales_of_two_bytes(case, dtype, tmp_path):
    _, weights = write(tmp_path, CASES[case], dtype)
    checkpoint = open_model(tmp_path).checkpoint
    for name, expected in weights.items():
        assert expected.dtype == dtype
        assert torch.equal(published.decoded(checkpoint, f"{name}.weight", dtype), expected)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("case", CASES)
def test_packed_weights_stay_close(case, tmp_path):
    twin, _ = write(tmp_path, CASES[case])
    model = published.load(tmp_path, packed=True)
    kinds = {matrix.storage for matrix in model.layers[0].mlp.down.format._matrices}
    assert kinds == {CASES[case].held}
    expected = tiny.reference_logits(twin, IDS)
    # What these wild weights make of 8-bit activations; the default model's are far tamer.
    assert published.relative_error(Driver(model).run(IDS, chunk=40), expected) < 0.07
    assert model.nbytes == published.planned_bytes(tmp_path)


@pytest.mark.parametrize("case", ["w4a16 asymmetric", "w8a16", "fp8 ragged blocks"])
def test_slices(case, tmp_path):
    _, weights = write(tmp_path, CASES[case])
    checkpoint = open_model(tmp_path).checkpoint
    name = "model.layers.0.mlp.down_proj"
    part = published.decoded(
        checkpoint, f"{name}.weight", torch.float32, slice(5, 90), slice(96, 160)
    )
    assert torch.equal(part, weights[name][5:90, 96:160])


@pytest.mark.parametrize("case", ["w4a16", "w8a16 asymmetric"])
def test_experts(case, tmp_path):
    """Each expert's matrices are packed apart, as for any other layer."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**CASES[case].weights))
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    quantized, decoded = tmp_path / "quantized", tmp_path / "decoded"
    for folder in (quantized, decoded):
        sizes = {**tiny.QWEN3_MOE, **SIZES, "num_experts": 16}  # the router's rows, by 16 too
        tiny.make("qwen3_moe", **sizes).save_pretrained(folder)
    packed, plain = {}, {}
    for name, weight in load_file(quantized / "model.safetensors").items():
        packed[name] = plain[name] = weight
        if not name.endswith("_proj.weight"):
            continue
        scale, zero = calculate_qparams(*extremes(weight, scheme.weights), scheme.weights)
        state = {"weight": weight, "weight_scale": scale}
        if not scheme.weights.symmetric:
            state["weight_zero_point"] = zero.round().to(torch.int8)
        parts = compressor.compress(state, scheme)
        del packed[name]
        packed |= {name.replace("weight", part): value for part, value in parts.items()}
        plain[name] = compressor.decompress(dict(parts), scheme)["weight"]
    save_file(packed, quantized / "model.safetensors")
    save_file(plain, decoded / "model.safetensors", {"format": "pt"})
    config = json.loads((quantized / "config.json").read_text())
    written = QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized")
    config["quantization_config"] = written.model_dump(mode="json")
    (quantized / "config.json").write_text(json.dumps(config))
    assert any("experts.3.down_proj.weight_packed" in name for name in packed)
    twin = Qwen3MoeForCausalLM.from_pretrained(decoded).eval()
    logits = Driver(published.load(quantized)).run(IDS, chunk=40)
    torch.testing.assert_close(logits, tiny.reference_logits(twin, IDS), rtol=0, atol=1e-4)
    model = published.load(quantized, packed=True)
    if ops.packed_storages():
        assert model.nbytes == published.planned_bytes(quantized)


def test_several_groups(tmp_path):
    """Layers by name first, then by class."""
    twin, _ = write(tmp_path, CASES["w4a16"])
    eight = CASES["w8a16"].weights
    scheme = QuantizationScheme(targets=[r"re:.*down_proj$"], weights=QuantizationArgs(**eight))
    rest = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**CASES["w4a16"].weights)
    )
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    layers, weights = {}, {}
    for name, linear in published.linears(twin).items():
        used = scheme if name.endswith("down_proj") else rest
        weight = linear.weight.detach()
        scale, _ = calculate_qparams(*extremes(weight, used.weights), used.weights)
        layers[name] = compressor.compress({"weight": weight, "weight_scale": scale}, used)
        weights[name] = compressor.decompress(dict(layers[name]), used)["weight"]
    config = QuantizationConfig(
        config_groups={"group_0": rest, "group_1": scheme}, format="pack-quantized"
    )
    published.save(tmp_path, twin, layers, config.model_dump(mode="json"))
    checkpoint = open_model(tmp_path).checkpoint
    for name, expected in weights.items():
        assert torch.equal(published.decoded(checkpoint, f"{name}.weight", torch.float32), expected)
    assert checkpoint.tensors["model.layers.1.mlp.down_proj.weight"].type == "INT8"
