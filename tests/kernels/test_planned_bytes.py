"""What the planner says that quantized matrices take on a GPU, against what they take."""

import json

import pytest
import torch
from safetensors.torch import save_file

from pagoda.arch.registry import spec_for
from pagoda.kernels.triton.products.layouts import STORAGES
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.planner.memory.assumed import assumed_tensors
from pagoda.planner.memory.weights import held_weights
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.files import open_model
from pagoda.weights.formats import FORMATS, PUBLISHED
from pagoda.weights.prequantized.select import nominal_group, nominal_storage
from tests.kernels.triton.quantized import random_raw

HIDDEN, WIDE = 256, 384
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDE,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "vocab_size": 64,
    "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
LINEARS = {
    **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE),
}  # fmt: skip


def _ints(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int64).to(torch.int32)


def _fp8(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns).to(torch.float8_e4m3fn)


def _compressed(bits: int, kind: str, strategy: str, form: str, **more) -> dict:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


# As those files are: quantization_config, and what a layer [rows, columns] has.
CASES = {
    "fp8 block": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda r, c: {
            "weight": _fp8(r, c), "weight_scale_inv": torch.rand(-(-r // 128), -(-c // 128)),
        },
    ),
    "fp8 tensor": (
        {"quant_method": "fp8"},
        lambda r, c: {"weight": _fp8(r, c), "weight_scale": torch.rand(())},
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
        lambda r, c: {
            "qweight": _ints(c, r // 8), "scales": torch.rand(c // 128, r).half(),
            "qzeros": _ints(c // 128, r // 8),
        },
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
        lambda r, c: {
            "qweight": _ints(c // 8, r), "scales": torch.rand(c // 128, r).half(),
            "qzeros": torch.full((c // 128, r // 8), 0x77777777, dtype=torch.int32),
        },
    ),
    "compressed int4 g64": (
        _compressed(4, "int", "group", "pack-quantized", group_size=64),
        lambda r, c: {
            "weight_packed": _ints(r, c // 8), "weight_scale": torch.rand(r, c // 64).bfloat16(),
            "weight_shape": torch.tensor([r, c]),
        },
    ),
    "compressed int8 channel": (
        _compressed(8, "int", "channel", "int-quantized"),
        lambda r, c: {
            "weight": _ints(r, c // 4).view(torch.int8), "weight_scale": torch.rand(r, 1),
        },
    ),
    "nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        lambda r, c: {
            "weight": _ints(r, c // 8).view(torch.uint8), "weight_scale": _fp8(r, c // 16),
            "weight_scale_2": torch.rand(()),
        },
    ),
    "compressed fp8 block": (
        _compressed(8, "float", "block", "float-quantized", block_structure=[128, 128]),
        lambda r, c: {"weight": _fp8(r, c), "weight_scale": torch.rand(r // 128, c // 128)},
    ),
}  # fmt: skip


def _write(folder, quantization, parts) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    tensors = {"model.embed_tokens.weight": torch.zeros(64, HIDDEN, dtype=torch.bfloat16)}
    for name in ("model.norm", "model.layers.0.input_layernorm",
                 "model.layers.0.post_attention_layernorm"):  # fmt: skip
        tensors[f"{name}.weight"] = torch.ones(HIDDEN)
    for name, shape in LINEARS.items():
        for part, value in parts(*shape).items():
            tensors[f"model.layers.0.{name}.{part}"] = value.contiguous()
    save_file(tensors, folder / "model.safetensors")


def _held(checkpoint, info: TensorInfo, columns: slice | None = None) -> int:
    """As a GPU keeps it (here the same tensors on a CPU)."""
    raw = torch.from_numpy(checkpoint.read(info.name, columns=columns).copy())
    width = info.shape[1] if columns is None else columns.stop - columns.start
    matrix = GpuMatrix(info.type, info.shape[0], width, "cpu")
    matrix.load(0, raw)
    matrix.settle()
    return matrix.nbytes


@pytest.mark.parametrize("case", CASES)
def test_shared_scales_are_counted_once(tmp_path, case):
    _write(tmp_path, *CASES[case])
    checkpoint = open_model(tmp_path).checkpoint
    spec = spec_for(open_model(tmp_path).config, {}, checkpoint.tensors)
    quantized = [info for info in checkpoint.tensors.values() if info.type in PUBLISHED]
    assert len(quantized) == len(LINEARS)
    kept = sum(_held(checkpoint, info) for info in quantized)

    def planned(tensors, size: int = 1) -> dict[str, float]:
        held = held_weights(spec, tensors, "bfloat16", STORAGES, size)
        return {part.tensor.name: part.nbytes for part in held if part.storage in PUBLISHED}

    assert sum(planned(checkpoint.tensors).values()) == kept
    config = open_model(tmp_path).config
    assumed = assumed_tensors(spec, nominal_storage(config), nominal_group(config))
    assert sum(planned(assumed).values()) == kept
    # Half of the columns of 384: scales of 128 lie across the cut.
    down = next(info for info in quantized if "down" in info.name)
    half = planned(checkpoint.tensors, 2)["layers.0.mlp.down.weight"]
    for columns in (slice(0, WIDE // 2), slice(WIDE // 2, WIDE)):
        assert _held(checkpoint, down, columns) == half
    checkpoint.close()


@pytest.mark.parametrize("storage", sorted(STORAGES))
def test_blocks_of_a_format(storage):
    matrix = GpuMatrix(storage, 64, HIDDEN, "cpu")
    matrix.load(0, random_raw(storage, 64, HIDDEN))
    matrix.settle()
    spec = spec_for(CONFIG, {}, ())
    infos = {
        f"model.layers.0.{name}.weight": TensorInfo(
            f"model.layers.0.{name}.weight", shape, storage,
            FORMATS[storage].nbytes(shape[0] * shape[1]),
            group=shape[1] if storage == "FP4" else 0,
        )
        for name, shape in LINEARS.items() if name.endswith("o_proj")
    }  # fmt: skip
    held = held_weights(spec, infos, "bfloat16", STORAGES)
    (part,) = (part for part in held if part.storage == storage)
    assert part.nbytes / part.elements == matrix.nbytes / (64 * HIDDEN)
