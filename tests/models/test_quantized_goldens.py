"""Layers and tiny models as AutoGPTQ, AutoAWQ, AutoRound, bitsandbytes and an old
compressed-tensors packed them, and what they decode to.

The files come from tools/quantized_goldens.py, which names the packages' versions.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pagoda.base.errors import CheckpointError
from pagoda.kernels import cpu
from pagoda.kernels.ref.dequant.formats import dequantize
from pagoda.quant.base import ShardSource
from pagoda.quant.packed import PackedLinear
from pagoda.quant.repack import repacked
from pagoda.weights.files import open_model
from tests.models import published
from tests.models.driver import Driver

DATA = Path(__file__).parent / "data"
FILES = [DATA / f"quantized_{name}.safetensors" for name in ("layers", "bits", "bitsandbytes")]
LAYERS = {name: tensor for path in FILES for name, tensor in load_file(path).items()}
# What each becomes, and the storage format of the native kernels that holds it.
STORAGES = {
    "gptq": ("INT4", "Q4_0"),
    "gptq asymmetric": ("UINT4", "Q4_1"),
    "gptq channels": ("UINT4", "Q4_1"),
    "gptq 8 bits": ("INT8", "Q8_0"),
    "gptq 8 bits asymmetric": ("DECODED", "Q8_0"),
    "gptq act order": ("DECODED", "Q8_0"),
    "gptq act order asymmetric": ("DECODED", "Q8_0"),
    "awq": ("UINT4", "Q4_1"),
    "auto-round": ("INT4", "Q4_0"),
    "auto-round asymmetric": ("UINT4", "Q4_1"),
    "auto-round v2": ("UINT4", "Q4_1"),
    "auto-round v2 8 bits": ("INT8", "Q8_0"),
    "auto-round awq": ("UINT4", "Q4_1"),
    "compressed-tensors act order": ("DECODED", "Q8_0"),
    "gptq 2 bits": ("INT4", "Q4_0"),
    "gptq 2 bits asymmetric": ("UINT4", "Q4_1"),
    "gptq 3 bits": ("INT4", "Q4_0"),
    "gptq 3 bits asymmetric": ("UINT4", "Q4_1"),
    "nf4": ("DECODED", "Q8_0"),
    "nf4 twice": ("DECODED", "Q8_0"),
    "nf4 across rows": ("DECODED", "Q8_0"),
    "fp4 twice": ("DECODED", "Q8_0"),
    "int8": ("INT8", "Q8_0"),
}
MODELS = ("gptq_act_order", "awq", "auto-round", "nf4")


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata()


CONFIGS = {name: config for path in FILES for name, config in metadata(path).items()}


def layer(folder: Path, name: str):
    """The checkpoint of one layer, and its weights as the package decodes them."""
    parts = {
        key.replace(f"{name}.", "a.", 1): value
        for key, value in LAYERS.items()
        if key.startswith(f"{name}.")
    }
    expected = parts.pop("a.expected")
    save_file(parts, folder / "model.safetensors")
    config = {"quantization_config": json.loads(CONFIGS[name])}
    (folder / "config.json").write_text(json.dumps(config))
    return open_model(folder).checkpoint, expected


def model(folder: Path, name: str):
    """(tensors of the golden file, its metadata), the checkpoint being in the folder."""
    path = DATA / f"quantized_{name}.safetensors"
    tensors, said = load_file(path), metadata(path)
    (folder / "config.json").write_text(said["config"])
    expected = tensors.pop("expected_logits")
    save_file(tensors, folder / "model.safetensors")
    return json.loads(said["ids"]), expected


def test_every_case_is_tested():
    assert set(STORAGES) == set(CONFIGS)


@pytest.mark.parametrize("name", STORAGES)
def test_layers_decode_as_their_package_does(name, tmp_path):
    checkpoint, expected = layer(tmp_path, name)
    assert checkpoint.tensors["a.weight"].type == STORAGES[name][0]
    assert torch.equal(published.decoded(checkpoint, "a.weight", torch.float16), expected)
    part = published.decoded(checkpoint, "a.weight", torch.float16, slice(3, 19), slice(32, 64))
    assert torch.equal(part, expected[3:19, 32:64])


@pytest.mark.parametrize("name", STORAGES)
def test_the_nearest_storage_of_the_kernels(name, tmp_path):
    checkpoint, expected = layer(tmp_path, name)
    storage, held = STORAGES[name]
    raw = torch.from_numpy(checkpoint.read("a.weight"))
    close = dequantize(repacked(raw, storage, held), held)
    exact = published.decoded(checkpoint, "a.weight", torch.float32)
    error = published.relative_error(close, exact)
    if storage in ("INT4", "INT8") and name != "int8":
        assert torch.equal(close, exact)
    else:  # minima, or scales of fp32, rounded to fp16, or all rounded to 8 bits
        assert error < (6e-3 if storage == "DECODED" else 1e-3)
    assert torch.equal(close.half(), expected) or error > 0


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("name", STORAGES)
def test_products(name, tmp_path):
    """As with the decoded weights, but for activations as the kernel rounds them."""
    from tests.kernels.packed import rounded  # which needs the kernels

    checkpoint, _ = layer(tmp_path, name)
    rows, columns = checkpoint.tensors["a.weight"].shape
    storage, held = STORAGES[name]
    raw = torch.from_numpy(checkpoint.read("a.weight"))
    linear = PackedLinear()
    linear.create((rows,), (storage,), columns, torch.float32, "cpu")
    linear.load(0, ShardSource(storage, rows, columns, lambda: raw))
    linear.finalize()
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(1))
    decoded = dequantize(repacked(raw, storage, held), held)
    expected = rounded(x, held, cpu.native().isa) @ decoded.double().t()
    torch.testing.assert_close(linear.apply(x), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_model(name, tmp_path):
    ids, expected = model(tmp_path, name)
    assert expected.std() > 0.3  # else a fault could hide below the bound
    logits = Driver(published.load(tmp_path)).run(ids, chunk=16)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("name", MODELS)
def test_packed_models_stay_close(name, tmp_path):
    ids, expected = model(tmp_path, name)
    packed = published.load(tmp_path, packed=True)
    assert published.relative_error(Driver(packed).run(ids, chunk=24), expected) < 0.07
    assert packed.nbytes == published.planned_bytes(tmp_path)


def test_headers_are_enough_for_a_plan(tmp_path):
    """Though the shape of what bitsandbytes wrote lies behind them."""
    model(tmp_path, "nf4")
    expected = published.planned_bytes(tmp_path)
    path = tmp_path / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(8 + int.from_bytes(file.read(8), "little"))
        file.truncate(size)
    assert published.planned_bytes(tmp_path) == expected > 0


@pytest.mark.parametrize("state", [b"{}", b"[1]", b'{"shape": [64], "blocksize": 64}', b"\x80"])
def test_a_state_that_is_none_is_named(state, tmp_path):
    model(tmp_path, "nf4")
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("__nf4"))
    tensors[name] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="__nf4 is no description of a matrix of 4 bits"):
        published.load(tmp_path)


def test_a_bias_of_zeros_may_be_left_over(tmp_path):
    """AutoGPTQ gives every layer one; other values would be lost."""
    model(tmp_path, "gptq_act_order")
    published.load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.bias"][5] = 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds model.layers.0.mlp.up_proj.bias"):
        published.load(tmp_path)
