"""Weights rounded while they load, and keys and values in int8, on tiny models of transformers."""

import json

import gguf
import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.kernels import cpu
from pagoda.models.base import CausalLM
from pagoda.models.loader import build_model
from pagoda.planner.quantization import quantized_tensors
from pagoda.weights.quantize import quantize_rows
from pagoda.weights.quantized import QuantizedCheckpoint
from pagoda.weights.safetensors import SafetensorsCheckpoint
from tests.models import tiny
from tests.models.driver import Driver

needs_kernels = pytest.mark.skipif(
    cpu.native() is None, reason="the native kernels are not built here"
)
IDS = tiny.random_ids(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return tiny.reference_logits(tiny.make("llama"), IDS)


def rounded(folder, method: str) -> CausalLM:
    checkpoint = SafetensorsCheckpoint(folder)
    spec = spec_for(json.loads((folder / "config.json").read_text()), {}, checkpoint.tensors)
    quantized = QuantizedCheckpoint(checkpoint, quantized_tensors(spec, checkpoint.tensors, method))
    return build_model(spec, quantized, dtype=torch.float32, device="cpu", packed=True)


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return ((logits - expected).norm() / expected.norm()).item()


@needs_kernels
@pytest.mark.parametrize(("method", "storage"), [("int8", "Q8_0"), ("int4", "Q4_1")])
def test_rounded_weights(folder, method, storage):
    """As transformers computes with the blocks that the gguf package reads back; what is left is
    the rounding of activations to 8 bits, which these wild weights enlarge."""
    twin, nbytes = tiny.make("llama"), 0
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            if weight.dim() == 1:
                nbytes += weight.nbytes
                continue
            table = name in ("model.embed_tokens.weight", "lm_head.weight")
            kind = "Q8_0" if table else storage
            raw = quantize_rows(weight.numpy().view(np.uint8), "F32", kind)
            weight.copy_(torch.tensor(gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])))
            panels = -(-len(raw) // 16)  # packed in panels of 16 rows
            nbytes += 16 * panels * raw.shape[1]
    model = rounded(folder, method)
    assert relative_error(Driver(model).run(IDS, 32), tiny.reference_logits(twin, IDS)) < 0.07
    assert model.nbytes == nbytes


@pytest.mark.parametrize("packed", [False, True])
def test_an_int8_cache_says_nearly_the_same(folder, expected, packed):
    model = tiny.load(folder, packed=packed)
    plain = relative_error(Driver(model).run(IDS, 32), expected)
    small = relative_error(Driver(model, kv_dtype=torch.int8).run(IDS, 32), expected)
    assert plain < small < 0.03


@needs_kernels
def test_chunks_and_neighbours_change_no_bit(folder):
    model = rounded(folder, "int4")
    whole = Driver(model, kv_dtype=torch.int8).run(IDS, 60)
    assert torch.equal(Driver(model, kv_dtype=torch.int8, seed=1).run(IDS, 7), whole)
    driver = Driver(model, kv_dtype=torch.int8, seed=2)
    for start in range(0, 60, 10):
        tokens = {"other": tiny.random_ids(3, seed=start), "r": IDS[start : start + 10]}
        assert torch.equal(driver.step(tokens)["r"], whole[start : start + 10])
