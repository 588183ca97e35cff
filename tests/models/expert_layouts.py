"""Tiny mixtures of experts on disk, in each layout and format that such checkpoints are published
in. What their weights mean say transformers and compressed-tensors; of FBGEMM and ModelOpt, which
are not at hand, torch's own fp8."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import FineGrainedFP8Config, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from tests.models import published, tiny, vision

Tensors = dict[str, torch.Tensor]

# Rows by 16, as the panels of packed matrices are, and columns by 32, as blocks are. No family has
# as many rows as columns in any matrix.
_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "vocab_size": 208, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES = {
    "qwen3_moe": {**tiny.QWEN3_MOE, **_SIZES, **_EXPERTS},
    "qwen3_5_moe": {
        **tiny.QWEN3_5_MOE, **_SIZES, **_EXPERTS, "shared_expert_intermediate_size": 32,
    },
    "qwen3_vl_moe": {**_SIZES, **_EXPERTS},
    "gemma4": {
        **tiny.GEMMA4_MOE, **_SIZES, "num_experts": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama4": {**tiny.LLAMA4, **_SIZES, "num_local_experts": 16},
    "gpt_oss": {**tiny.GPT_OSS, **_SIZES, "num_local_experts": 16, "intermediate_size": 32},
}  # fmt: skip
LAYOUTS = ("single", "stacked", "transposed")
APART = "apart"
"""A tensor per expert in which gate and up lie as in that of all: `gate_up_projs.N.weight`."""
_ON_THEIR_SIDE = ("llama4", "gpt_oss")
"""As transformers holds them."""
_EXPERT = re.compile(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?")
_ATTENTION = re.compile(r".*\.self_attn\.[qkvo]_proj\.weight")


@dataclass(frozen=True)
class Stored:
    """A matrix, or one of each expert, as a checkpoint holds it."""

    parts: Tensors
    """By what their names add to the matrix's, which itself adds nothing."""
    weight: torch.Tensor
    """What they say, in fp32."""


@dataclass(frozen=True)
class Format:
    quantization: dict[str, Any]
    storage: str
    """That experts become."""
    layouts: tuple[str, ...] = LAYOUTS

    def store(self, weight: torch.Tensor) -> Stored:
        return Stored({"": weight}, weight)


class Fp8Blocks(Format):
    """As transformers writes and reads them: DeepSeek's form, and Qwen's."""

    def store(self, weight: torch.Tensor) -> Stored:
        config = FineGrainedFP8Config(weight_block_size=[32, 32])
        quantizer = SimpleNamespace(quantization_config=config)
        made = Fp8Quantize(quantizer).convert({"experts.x_proj": weight})
        parts = {name.removeprefix("experts.x_proj"): part for name, part in made.items()}
        both = {"weight": parts[""], "weight_scale_inv": parts["_scale_inv"]}
        return Stored(parts, Fp8Dequantize(quantizer).convert(both)["weight"])


class Fp8Rows(Format):
    """As FBGEMM writes them, with a scale for each row."""

    def store(self, weight: torch.Tensor) -> Stored:
        scale = weight.abs().amax(-1, keepdim=True) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return Stored({"": codes, "_scale": scale}, codes.float() * scale)


class Fp8Whole(Format):
    """As ModelOpt writes them: one scale for all, and one for activations, which is left out."""

    def store(self, weight: torch.Tensor) -> Stored:
        scale = weight.abs().amax() / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        parts = {"": codes, "_weight_scale": scale, "_input_scale": torch.tensor(0.5)}
        return Stored(parts, codes.float() * scale)


class Nvfp4(Format):
    """As ModelOpt writes them."""

    def store(self, weight: torch.Tensor) -> Stored:
        parts, decoded = published.modelopt(weight)
        return Stored({f"_{name}" if name != "weight" else "": x for name, x in parts.items()},
                      decoded)  # fmt: skip


@dataclass(frozen=True)
class Compressed(Format):
    """As the package compressed-tensors writes them, expert by expert."""

    scheme: QuantizationScheme | None = None
    packing: str = ""

    def store(self, weight: torch.Tensor) -> Stored:
        if weight.dim() == 3:
            each = [self.store(x) for x in weight]
            names = [name for name in each[0].parts if name != "_shape"]
            parts = {name: torch.stack([x.parts[name] for x in each]) for name in names}
            return Stored(parts, torch.stack([x.weight for x in each]))
        assert self.scheme is not None and self.scheme.weights is not None
        compressor = BaseCompressor.get_value_from_registry(self.packing)
        args = self.scheme.weights
        groups = weight.unflatten(-1, (-1, args.group_size or weight.shape[-1]))
        scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        parts = compressor.compress({"weight": weight, "weight_scale": scale}, self.scheme)
        decoded = compressor.decompress(dict(parts), self.scheme)["weight"]
        return Stored({name.removeprefix("weight"): part for name, part in parts.items()}, decoded)


def _compressed(packing: str, storage: str, **args: Any) -> Compressed:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=packing)
    return Compressed(config.model_dump(mode="json"), storage, ("single",), scheme, packing)


FORMATS = {
    "plain": Format({}, "F32"),
    "fp8 blocks": Fp8Blocks({"quant_method": "fp8", "weight_block_size": [32, 32]}, "FP8"),
    "fp8 rows": Fp8Rows({"quant_method": "fbgemm_fp8"}, "FP8"),
    "fp8 whole": Fp8Whole({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8"),
    "compressed fp8": _compressed(
        "float-quantized", "FP8", num_bits=8, type="float", strategy="channel"
    ),
    "compressed int4": _compressed(
        "pack-quantized", "INT4", num_bits=4, strategy="group", group_size=32
    ),
    "compressed int8": _compressed("int-quantized", "INT8", num_bits=8, strategy="channel"),
    "nvfp4": Nvfp4({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "FP4"),
}
ALSO = [
    ("qwen3_moe", APART, "plain"), ("gpt_oss", APART, "plain"), ("gpt_oss", APART, "fp8 rows"),
    ("gemma4", "single", "nvfp4"), ("qwen3_moe", "stacked", "nvfp4"),
    ("llama4", "transposed", "nvfp4"), ("gpt_oss", "transposed", "nvfp4"),
    ("qwen3_vl_moe", "stacked", "compressed int4"), ("gpt_oss", "stacked", "compressed int8"),
    ("qwen3_5_moe", "single", "compressed int8"), ("llama4", "stacked", "compressed fp8"),
]  # fmt: skip
"""Layouts and formats of single families."""


def write(folder: Path, family: str, layout: str, format: Format) -> PreTrainedModel:
    """transformers' model with the weights that the checkpoint in `folder` says: experts and
    attention are quantized, and nothing else."""
    if family == "qwen3_vl_moe":
        reference = vision.make(FAMILIES[family], family=family)
    else:
        reference = tiny.make(family, **FAMILIES[family])
    tensors: Tensors = {}
    with torch.no_grad():
        for name, held in reference.state_dict().items():
            found = _EXPERT.fullmatch(name)
            if found is not None:
                made = _experts(name, held, family, layout, format)
            elif _ATTENTION.fullmatch(name):
                stored = format.store(held)
                made = _named(name.removesuffix("weight"), stored)
                held.copy_(stored.weight)
            else:
                made = {name: held}
            tensors |= {key: part.contiguous().clone() for key, part in made.items()}
    _save(folder, reference, tensors, format.quantization)
    return reference


def _experts(name: str, held: torch.Tensor, family: str, layout: str, format: Format) -> Tensors:
    """What all experts have of something, as the checkpoint has it; `held` becomes what that
    means."""
    stack, matrix, is_bias = _EXPERT.fullmatch(name).groups()
    upright = held.mT if family in _ON_THEIR_SIDE and not is_bias else held
    if layout in LAYOUTS[1:]:
        layered = isinstance(format, Compressed)  # transformers' own parameters are no layers
        if is_bias:
            return {f"{name.removesuffix('_bias')}.bias" if layered else name: held}
        named = f"{name}.weight" if layered else name
        stored = format.store(upright.contiguous())
        upright.copy_(stored.weight)
        made = {named + suffix: part for suffix, part in stored.parts.items()}
        return made if layout == "stacked" else {key: _turned(key, x) for key, x in made.items()}
    made = {}
    for expert in range(len(upright)):
        for part, rows in _parts(matrix, upright.shape[1], layout, in_turn=family == "gpt_oss"):
            layer = f"{stack}.{expert}.{part}_proj."
            if layout == APART:
                layer = f"{stack}.{part}_projs.{expert}."
            if is_bias:
                made[layer + "bias"] = upright[expert, rows]
                continue
            stored = format.store(upright[expert, rows].contiguous())
            upright[expert, rows] = stored.weight
            made |= _named(layer, stored)
    return made


def _named(layer: str, stored: Stored) -> Tensors:
    """The parts of one layer's matrix: `weight`, `weight_scale`, `input_scale`."""
    parts = dict(stored.parts)
    made = {layer + "input_scale": parts.pop("_input_scale")} if "_input_scale" in parts else {}
    return made | {
        f"{layer}weight{key.removeprefix('_weight')}": part for key, part in parts.items()
    }


def _turned(name: str, part: torch.Tensor) -> torch.Tensor:
    """On its side; but FBGEMM leaves the scales of down's rows as they are."""
    return part if part.dim() < 3 or name.endswith(".down_proj_scale") else part.mT


def _parts(matrix: str, rows: int, layout: str, in_turn: bool) -> Iterator[tuple[str, slice]]:
    if matrix == "down" or layout == APART:
        yield matrix, slice(0, rows)
    elif in_turn:
        yield from (("gate", slice(0, rows, 2)), ("up", slice(1, rows, 2)))
    else:
        yield from (("gate", slice(0, rows // 2)), ("up", slice(rows // 2, rows)))


def _save(folder: Path, model: PreTrainedModel, tensors: Tensors, quantization: dict) -> None:
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"architectures": [type(model).__name__]}
    if quantization:
        config["quantization_config"] = quantization
    path.write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
