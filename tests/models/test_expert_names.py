"""Families of experts in the layouts that quantizers publish, by headers alone: each tensor
has its place, and experts stay quantized. What their values become: test_expert_layouts.py."""

import json
import re
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors import safe_open

from pagoda.arch.registry import spec_for
from pagoda.models.loader import build_model
from pagoda.weights.files import open_model
from tests.models import tiny

# Sizes that differ, by 32.
_SIZES = {"hidden_size": 128, "vocab_size": 64, "num_hidden_layers": 2}
FAMILIES = {
    "deepseek_v2": tiny.DEEPSEEK_V2, "deepseek_v3": tiny.DEEPSEEK_V3,
    "ernie4_5_moe": {**tiny.ERNIE4_5_MOE, "moe_intermediate_size": 32},
    "gemma4": {**tiny.GEMMA4_MOE, "layer_types": ["sliding_attention", "full_attention"]},
    "glm4_moe": tiny.GLM4_MOE, "glm4_moe_lite": tiny.GLM4_MOE_LITE, "gpt_oss": tiny.GPT_OSS,
    "granite_moe": tiny.GRANITE_MOE,
    "granite_moe_shared": {**tiny.GRANITE_MOE, "shared_intermediate_size": 64},
    "lfm2_moe": {**tiny.LFM2_MOE, "layer_types": ["conv", "full_attention"]},
    "llama4": tiny.LLAMA4, "minimax_m2": tiny.MINIMAX_M2, "mixtral": tiny.MIXTRAL,
    "qwen3_5_moe": tiny.QWEN3_5_MOE, "qwen3_moe": tiny.QWEN3_MOE,
    "qwen3_next": tiny.QWEN3_5_MOE,
}  # fmt: skip
# Of the experts' own matrices in a published file, by family; all else is as it is.
_STACKS = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)()")
_GRANITE = re.compile(r"(.*\.block_sparse_moe)\.(input_linear|output_linear)\.(weight)")
_EACH = re.compile(r"(.*\.experts)\.\d+\.(\w+)\.weight")
_UP = ("gate_up_proj", "input_linear")
_DOWN = ("down_proj", "output_linear", "w2")
_GATE = ("gate_proj", "w1")

Headers = dict[str, tuple[str, tuple[int, ...]]]


def _int4(layer: str, rows: int, columns: int, count: int = 0) -> Headers:
    """compressed-tensors: groups of 32, and behind the names of all experts' too."""
    stack = (count,) if count else ()
    return {
        f"{layer}.weight_packed": ("I32", (*stack, rows, columns // 8)),
        f"{layer}.weight_scale": ("BF16", (*stack, rows, columns // 32)),
        **({} if count else {f"{layer}.weight_shape": ("I64", (2,))}),
    }


def _gptq(layer: str, rows: int, columns: int, count: int = 0) -> Headers:
    stack = (count,) if count else ()
    return {
        f"{layer}.qweight": ("I32", (*stack, columns // 8, rows)),
        f"{layer}.scales": ("F16", (*stack, columns // 32, rows)),
        f"{layer}.qzeros": ("I32", (*stack, columns // 32, rows // 8)),
    }


def _awq(layer: str, rows: int, columns: int, count: int = 0) -> Headers:
    stack = (count,) if count else ()
    return {
        **_gptq(layer, rows, columns, count),
        f"{layer}.qweight": ("I32", (*stack, columns, rows // 8)),
    }


def _fp8(layer: str, rows: int, columns: int, count: int = 0) -> Headers:
    """Blocks of 32x32."""
    if not count:
        return {
            f"{layer}.weight": ("F8_E4M3", (rows, columns)),
            f"{layer}.weight_scale_inv": ("F32", (rows // 32, columns // 32)),
        }
    return {
        layer: ("F8_E4M3", (count, rows, columns)),
        f"{layer}_scale_inv": ("F32", (count, rows // 32, columns // 32)),
    }


def _fp8_lying(layer: str, rows: int, columns: int, count: int) -> Headers:
    found = _fp8(layer, rows, columns, count)
    return {name: (kind, (n, y, x)) for name, (kind, (n, x, y)) in found.items()}


_GROUPS = {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}
FORMATS = {
    "int4": (_int4, "INT4", {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": _GROUPS},
    }),
    "gptq": (_gptq, "INT4", {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}),
    "awq": (_awq, "UINT4", {"quant_method": "awq", "bits": 4, "group_size": 32}),
    "fp8": (_fp8, "FP8", {"quant_method": "fp8", "weight_block_size": [32, 32]}),
    "fp8 lying": (_fp8_lying, "FP8", {"quant_method": "fp8", "weight_block_size": [32, 32]}),
}  # fmt: skip
# Layouts of matrices, by what they are called: one each, one for gate and up of an expert, all.
LAYOUTS = {
    "own": "awq", "each": "gptq", "pairs": "int4", "apart": "awq", "stacked": "int4",
    "fp8": "fp8", "lying": "fp8 lying", "stacked gptq": "gptq", "stacked awq": "awq",
}  # fmt: skip
_OWN_STACKS = ("gemma4", "gpt_oss", "granite_moe", "granite_moe_shared", "llama4")
"""Whose own files have one tensor for all experts."""
# Names of experts are a family's, what lies behind them is the format's: so not all with all.
_WIDELY = ("own", "each", "stacked")
_CLOSELY = ("gpt_oss", "granite_moe", "mixtral", "qwen3_moe")


CASES = [
    (family, layout)
    for family in FAMILIES
    for layout in (LAYOUTS if family in _CLOSELY else _WIDELY)
]


@cache
def plain(family: str) -> tuple[dict, Headers]:
    """A family's config, and the header of a file that transformers wrote."""
    model = tiny.make(family, **{**FAMILIES[family], **_SIZES})
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads(Path(folder, "config.json").read_text())
        with safe_open(Path(folder, "model.safetensors"), "pt") as file:
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return config, {name: ("F32", shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_each_tensor_has_its_place(family, layout, tmp_path: Path):
    config, header = plain(family)
    quantized, kind, told = FORMATS[LAYOUTS[layout]]
    if layout == "own" and family in _OWN_STACKS:
        quantized, kind, told = FORMATS["int4"]  # in which whole stacks are published
    made, count = _laid_out(header, layout, quantized)
    write(tmp_path, {**config, "quantization_config": told}, made)
    files = open_model(tmp_path)
    spec = spec_for(files.config, {}, files.checkpoint.tensors)
    build_model(spec, files.checkpoint, dtype=torch.float32, device="meta")
    rules = [rule for rule in spec.expanded_weights() if rule.experts and "attention" not in
             rule.param and rule.param.endswith(".weight")]  # fmt: skip
    kinds = {files.checkpoint.tensors[name].type for rule in rules for name in rule.sources}
    assert kinds == {kind} and count == len(rules) > 0


def _laid_out(header: Headers, layout: str, quantized) -> tuple[Headers, int]:
    """The header with experts so, and how many of the model's parameters they are."""
    made: Headers = {}
    stacks: dict[tuple[str, str], list] = {}
    for name, (kind, shape) in header.items():
        whole = _STACKS.fullmatch(name) or _GRANITE.fullmatch(name)
        each = _EACH.fullmatch(name)
        if whole is not None:
            before, matrix, _ = whole.groups()
            stacks[before, matrix] = [*shape, name]
        elif each is not None:
            before, matrix = each.groups()
            stack = stacks.setdefault((before, matrix), [0, *shape, name])
            stack[0] += 1
        else:
            made[name] = (kind, shape)
    for (before, matrix), (count, rows, columns, name) in stacks.items():
        if matrix in _UP:
            # gpt-oss and Llama 4 hold them on their side; experts are narrower than the model.
            upright = columns == _SIZES["hidden_size"]
            _, both, hidden = (count, rows, columns) if upright else (count, columns, rows)
            made |= _gate_and_up(before, name, layout, quantized, count, both // 2, hidden)
        elif matrix in _GATE:
            made |= _gate_and_up(before, name, layout, quantized, count, rows, columns)
        elif matrix in _DOWN:
            hidden = _SIZES["hidden_size"]
            size = columns if rows == hidden else rows
            made |= _down(before, name, layout, quantized, count, hidden, size)
    return made, sum(key[1] in (*_UP, *_GATE, *_DOWN) for key in stacks)


def _gate_and_up(before, name, layout, quantized, count, rows, columns) -> Headers:
    experts = before if before.endswith("experts") else f"{before}.experts"
    numbers = range(count)
    if layout == "own" and _is_one(name):
        gate = re.sub(r"\.\d+\.(\w+)\.weight$", r".{}.\1", name)
        up = gate.replace("gate_proj", "up_proj").replace(".w1", ".w3")
        layers = [part.format(n) for n in numbers for part in (gate, up)]
        return _all(quantized(layer, rows, columns) for layer in layers)
    if layout == "own":
        return quantized(name.removesuffix(".weight"), 2 * rows, columns, count)
    if layout == "each":
        layers = [f"{experts}.{n}.{part}_proj" for n in numbers for part in ("gate", "up")]
        return _all(quantized(layer, rows, columns) for layer in layers)
    if layout in ("pairs", "apart"):
        named = "{}.gate_up_proj" if layout == "pairs" else "gate_up_projs.{}"
        layers = [f"{experts}.{named.format(n)}" for n in numbers]
        return _all(quantized(layer, 2 * rows, columns) for layer in layers)
    return quantized(f"{experts}.gate_up_proj", 2 * rows, columns, count)


def _is_one(name: str) -> bool:
    return _EACH.fullmatch(name) is not None


def _down(before, name, layout, quantized, count, rows, columns) -> Headers:
    experts = before if before.endswith("experts") else f"{before}.experts"
    if layout == "own" and _is_one(name):
        layer = re.sub(r"\.\d+\.(\w+)\.weight$", r".{}.\1", name)
        return _all(quantized(layer.format(n), rows, columns) for n in range(count))
    if layout == "own":
        return quantized(name.removesuffix(".weight"), rows, columns, count)
    if layout in ("each", "pairs", "apart"):
        named = "down_projs.{}" if layout == "apart" else "{}.down_proj"
        return _all(quantized(f"{experts}.{named.format(n)}", rows, columns) for n in range(count))
    return quantized(f"{experts}.down_proj", rows, columns, count)


def _all(found) -> Headers:
    return {name: entry for each in found for name, entry in each.items()}


_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "F8_E4M3": 1}


def write(folder: Path, config: dict, made: Headers) -> None:
    """A sparse file."""
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (kind, shape) in made.items():
        start, end = end, end + prod(shape) * _BYTES[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
