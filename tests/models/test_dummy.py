"""Random weights of quantized models, of which config.json alone is there: they run, take as much
memory as is planned, and repeat."""

import json

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.kernels import cpu, ops
from pagoda.kernels.ref.dequant.formats import dequantize
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.models.dummy import DummyCheckpoint
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy, dummy_of
from pagoda.planner.memory.weights import weight_bytes
from pagoda.weights.checkpoint import TensorInfo
from tests.models import tiny
from tests.models.driver import Driver


def compressed(kind: str, bits: int, **weights) -> dict:
    weights = {"type": kind, "num_bits": bits, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


METHODS = {
    "fp8": ("FP8", 0, {"quant_method": "fp8"}),
    "fp8 in blocks": ("FP8", 128, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "awq": (
        "UINT4", 32,
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    ),
    "gptq": ("INT4", 64, {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}),
    "gptq by activations": (
        "DECODED", 64,
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": True},
    ),
    "int4": ("INT4", 32, compressed("int", 4, strategy="group", group_size=32)),
    "int8": ("INT8", 0, compressed("int", 8, strategy="channel")),
    "compressed fp8": ("FP8", 0, compressed("float", 8, strategy="tensor")),
    "mxfp4": ("MXFP4", 0, {"quant_method": "mxfp4"}),
    "nvfp4": (
        "FP4", 0, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    ),
}  # fmt: skip
# Whole panels of 16 rows.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 224}
MODELS = {
    "llama": SIZES,
    "qwen3_moe": {**tiny.QWEN3_MOE, **SIZES, "moe_intermediate_size": 64},
    "qwen3_5": {**tiny.QWEN3_5, **SIZES},
    "gemma4": {**tiny.GEMMA4, **SIZES},
    "gemma4_e": {**tiny.GEMMA4_E, **SIZES, "vocab_size_per_layer_input": 224},
    "gpt_oss": {**tiny.GPT_OSS, **SIZES},
}
CASES = [(family, "int4") for family in MODELS if family != "gpt_oss"]
CASES += [("llama", method) for method in METHODS if method != "mxfp4"]
CASES += [("qwen3_moe", "fp8 in blocks"), ("gpt_oss", "mxfp4")]


@pytest.mark.parametrize(("family", "method"), dict.fromkeys(CASES))
def test_quantized_models(family, method, tmp_path):
    reference = tiny.make(family, **MODELS[family])
    reference.config.architectures = [type(reference).__name__]
    reference.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    storage, group, config["quantization_config"] = METHODS[method]
    spec = spec_for(config, {}, ())
    dummy = dummy_of(spec, config)
    assert dummy.group == group and storage in {info.type for info in dummy.tensors.values()}
    logits = []
    for packed in {False, cpu.native() is not None}:
        model = build_model(spec, dummy, dtype=torch.float32, device="cpu", packed=packed)
        logits.append(Driver(model).run(tiny.random_ids(20), 20))
        assert logits[-1].isfinite().all() and logits[-1].std() > 0.01
        kept = ops.packed_storages("cpu") if packed else frozenset()
        planned = weight_bytes(spec, dummy.tensors, "float32", kept)
        assert model.nbytes == pytest.approx(planned, rel=0.03)
    assert (logits[0] - logits[-1]).std() < 0.1 * logits[0].std()


@pytest.mark.parametrize("storage", ["INT4", "UINT4", "INT8", "FP8", "FP4", "MXFP4"])
@pytest.mark.parametrize("group", [0, 64])
def test_quantized_weights_are_as_large_as_plain_ones(storage, group):
    """Those of a group share a scale, as a GPU finds, and neighbouring groups do not."""
    info = TensorInfo("x", (64, 256), storage, 0)
    checkpoint = DummyCheckpoint({"x": (64, 256)}, torch.bfloat16, Dummy({"x": info}, group))
    raw = checkpoint.read("x")
    assert raw.nbytes == checkpoint.tensors["x"].nbytes
    weights = dequantize(torch.from_numpy(raw), storage, torch.float32)
    assert 0.009 < weights.std() < 0.02 and weights.abs().max() < 0.07
    assert abs(weights.mean()) < 0.002
    matrix = GpuMatrix(storage, 64, 256, "cpu")
    matrix.load(0, torch.from_numpy(raw))
    matrix.settle()
    own = {"MXFP4": 32, "FP4": 16}
    assert matrix.layout.group == own.get(storage, group or 256)


@pytest.mark.parametrize("shape", [(6, 64), (3, 6, 64)])
def test_slices_are_those_of_the_whole(shape):
    info = TensorInfo("x", shape, "INT4", 0)
    checkpoint = DummyCheckpoint({"x": shape}, torch.bfloat16, Dummy({"x": info}, 32))
    whole = checkpoint.read("x")
    assert whole.nbytes == checkpoint.tensors["x"].nbytes
    part = checkpoint.read("x", slice(1, 5), slice(32, 64))
    assert np.array_equal(part, whole[1:5, 20:])
    if len(shape) == 3:
        across = checkpoint.read("x", slice(4, 13))
        assert np.array_equal(across, whole[4:13])


def test_layers_that_are_left_out():
    """By name, by part of it, and by pattern."""
    spec = spec_for(
        tiny.make("llama").config.to_dict() | {"architectures": ["LlamaForCausalLM"]}, {}, ()
    )
    for lists, left in (
        (
            {"modules_to_not_convert": ["model.layers.0.mlp.up_proj", "self_attn"]},
            ("0.mlp.up_", "attn"),
        ),
        ({"ignore": ["lm_head", "re:.*down_proj$"]}, ("down_proj",)),
        ({"ignore": ["lm_head", "model.layers.*.mlp*"]}, ("mlp",)),
        ({"dynamic": {"-:.*mlp": {}, "+:.*attn": {"bits": 8}}}, ("mlp",)),
    ):
        method = {"quant_method": "gptq", "bits": 4, "group_size": 32, **lists}
        infos = dummy_of(spec, {"quantization_config": method}).tensors
        plain = {name for name, info in infos.items() if info.type != "INT4" and "proj" in name}
        assert plain == {name for name in infos if any(part in name for part in left)}, lists
