"""Headers of quantized mixtures in their true sizes, two layers of each: each tensor has a place,
and the plan counts what they hold. Names and shapes are those of transformers' own models, less
what the quantizers change."""

import json
import re
from copy import deepcopy
from math import ceil, prod
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from pagoda.arch.registry import spec_for
from pagoda.planner.memory.weights import held_weights
from pagoda.weights.files import open_model
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B
from tests.unit.planner.published import QWEN3_VL_30B

Shapes = dict[str, tuple[str, tuple[int, ...]]]

_LINEAR = re.compile(r".*language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
_BLOCK = 128


def qwen3_vl_fp8(name: str, shape: tuple[int, ...]) -> Shapes:
    """Qwen/Qwen3-VL-30B-A3B-Instruct-FP8: blocks of 128 by 128, experts on their side."""
    scale = f"{name}_scale_inv"
    if ".experts." in name:
        count, rows, columns = shape
        shape = (count, columns, rows)
    elif not _LINEAR.fullmatch(name):
        return {name: ("BF16", shape)}
    blocks = tuple(ceil(size / _BLOCK) for size in shape[-2:])
    return {name: ("F8_E4M3", shape), scale: ("BF16", (*shape[:-2], *blocks))}


def gemma4_fp8_dynamic(name: str, shape: tuple[int, ...]) -> Shapes:
    """RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic: a scale for each row, and each expert apart."""
    if ".experts." not in name:
        return _rows(name, shape) if _LINEAR.fullmatch(name) else {name: ("BF16", shape)}
    stack, _, matrix = name.rpartition(".")
    count, rows, columns = shape
    parts = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}[matrix]
    found: Shapes = {}
    for expert in range(count):
        for part in parts:
            weight = f"{stack}.{expert}.{part}_proj.weight"
            found |= _rows(weight, (rows // len(parts), columns))
    return found


def _rows(name: str, shape: tuple[int, ...]) -> Shapes:
    return {name: ("F8_E4M3", shape), f"{name}_scale": ("BF16", (shape[0], 1))}


def write(folder: Path, config: dict, made: Shapes) -> None:
    """A sparse file of the true size."""
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in made.items():
        start, end = end, end + prod(shape) * (1 if dtype == "F8_E4M3" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)


def cut(config: dict, vision: dict) -> dict:
    """Two layers of the language model, fewer of the tower."""
    text = {**config["text_config"], "num_hidden_layers": 2}
    if "layer_types" in text:
        text["layer_types"] = ["sliding_attention", "full_attention"]
    return {**config, "text_config": text, "vision_config": {**config["vision_config"], **vision}}


FP8 = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK]}
DYNAMIC = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "float", "strategy": "channel",
    }}},
}  # fmt: skip
CASES = {
    "qwen3-vl": (
        cut(QWEN3_VL_30B, {"depth": 2, "deepstack_visual_indexes": [1]}), FP8, qwen3_vl_fp8,
        Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration,
        # A scale for four blocks of 32, which the 128 columns of a block are.
        lambda columns: 32 + 4 / 4,
    ),
    "gemma-4": (
        cut(GEMMA4_26B_A4B, {"num_hidden_layers": 1}), DYNAMIC, gemma4_fp8_dynamic,
        Gemma4Config, Gemma4ForConditionalGeneration,
        lambda columns: 32 + 4 * 32 / columns,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_tensor_has_its_place(case: str, tmp_path: Path) -> None:
    config, quantization, quantized, config_class, model_class, block_bytes = CASES[case]
    with torch.device("meta"):
        held = model_class(config_class(**deepcopy(config))).state_dict()
    made: Shapes = {}
    for name, meta in held.items():
        if not (name == "lm_head.weight" and config["tie_word_embeddings"]):
            made |= quantized(name, tuple(meta.shape))
    write(tmp_path, {**config, "quantization_config": quantization}, made)
    files = open_model(tmp_path)
    tensors = files.checkpoint.tensors
    spec = spec_for(files.config, {}, tensors)
    wanted = {source for rule in spec.expanded_weights() for source in rule.sources}
    assert wanted == set(tensors)
    kinds = {name: info.type for name, info in tensors.items()}
    for name, (dtype, _) in made.items():
        if not name.endswith(("_scale", "_scale_inv")):
            assert kinds[name] == ("FP8" if dtype == "F8_E4M3" else "BF16"), name
    on_gpu = held_weights(spec, tensors, "bfloat16", frozenset({"FP8"}))
    for part in on_gpu:
        if part.tensor.role == "experts":
            blocks = part.tensor.elements / 32
            assert part.nbytes == blocks * block_bytes(part.tensor.shape[-1])
    assert sum(part.tensor.role == "experts" for part in on_gpu) == 4
