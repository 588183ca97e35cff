"""Tiny quantized checkpoints on disk, as the packages that quantize leave them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from pagoda.arch.registry import spec_for
from pagoda.kernels import ops
from pagoda.models.base import CausalLM
from pagoda.models.loader import build_model
from pagoda.planner.memory.weights import weight_bytes
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.files import open_model


def linears(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """What such packages quantize: all linear layers but the output head."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }


def modelopt(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """NVFP4 as ModelOpt has it: tensors of a matrix, or of all experts', and the weights that they
    say. The largest of 16 weights becomes 6 times their scale, the largest scale 448 times that of
    the whole."""
    groups = weight.unflatten(-1, (-1, 16))
    whole = weight.abs().amax() / (6 * 448)
    scale = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    each = (scale.float() * whole).unsqueeze(-1)
    numbers = torch.tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6))
    codes = ((groups.abs() / each).unsqueeze(-1) - numbers).abs().argmin(-1)
    decoded = numbers[codes] * each * groups.sign()
    codes = (codes + 8 * (groups < 0)).flatten(-2).to(torch.uint8)
    parts = {
        "weight": codes[..., ::2] + 16 * codes[..., 1::2], "weight_scale": scale,
        "weight_scale_2": whole, "input_scale": torch.tensor(0.1),
    }  # fmt: skip
    return parts, decoded.flatten(-2)


def save(
    folder: Path,
    model: PreTrainedModel,
    layers: dict[str, dict[str, torch.Tensor]],
    quantization: dict[str, Any],
    of: dict[str, torch.Tensor] | None = None,
) -> None:
    """The model (or so much `of` it) with the tensors of `layers` in place of these layers'
    weights."""
    tensors = {
        name: tensor.contiguous().clone()
        for name, tensor in (model.state_dict() if of is None else of).items()
        if name.rpartition(".")[0] not in layers or not name.endswith(".weight")
    }
    for layer, parts in layers.items():
        tensors |= {f"{layer}.{part}": value.contiguous() for part, value in parts.items()}
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    changes = {
        "architectures": [type(model).__name__],
        "quantization_config": quantization,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path, **options: Any) -> CausalLM:
    files = open_model(folder)
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    return build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu", **options)


def decoded(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype, rows: slice | None = None,
    columns: slice | None = None,
) -> torch.Tensor:  # fmt: skip
    raw = torch.from_numpy(checkpoint.read(name, rows, columns))
    return ops.dequantize(raw, checkpoint.tensors[name].type, dtype)


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return ((logits - expected).norm() / expected.norm()).item()


def planned_bytes(folder: Path) -> int:
    """What the planner says that the packed weights will take."""
    files = open_model(folder)
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    return weight_bytes(spec, files.checkpoint.tensors, "float32", ops.packed_storages())
