"""Mixtures of experts load in every layout and format that they are published in, and say what
transformers says with the weights that the quantizer's own package reads back."""

import logging
import re
from collections import Counter

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.config.engine import ModelConfig
from pagoda.engine.start.model_files import checkpoint_of, spec_of
from pagoda.kernels import ops
from pagoda.layers.context import Parallel
from pagoda.layers.moe import ExpertMatrices
from pagoda.models.loader import build_model
from pagoda.planner.memory.weights import held_weights
from pagoda.planner.quantization import quantized_tensors, rounding_in_words
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.files import open_model
from tests.models import expert_layouts, published, tiny
from tests.models.driver import Driver
from tests.models.expert_layouts import FAMILIES, FORMATS
from tests.models.gloo_ranks import on_ranks
from tests.models.recording import RecordingCheckpoint
from tests.unit.planner.published import QWEN3_VL_30B

IDS = tiny.random_ids(12, vocab_size=200)
CASES = [
    (family, layout, format)
    for family in FAMILIES
    for format, found in FORMATS.items()
    for layout in found.layouts
    if format not in ("nvfp4", "compressed int8")
] + expert_layouts.ALSO


@pytest.mark.pairwise
@pytest.mark.parametrize(("family", "layout", "format"), CASES)
def test_each_layout_of_each_format(family, layout, format, tmp_path):
    reference = expert_layouts.write(tmp_path, family, layout, FORMATS[format])
    model = published.load(tmp_path)
    expected = tiny.reference_logits(reference, IDS)
    assert expected.std() > 0.1  # else a fault could hide below the bound
    torch.testing.assert_close(Driver(model).run(IDS, 12), expected, rtol=0, atol=1e-4)
    checkpoint = open_model(tmp_path).checkpoint
    kinds = {info.type for name, info in checkpoint.tensors.items() if is_matrix(name)}
    assert kinds == {FORMATS[format].storage}
    if ops.packed_storages():
        found = published.load(tmp_path, packed=True)
        files = open_model(tmp_path)
        assert loaded_bytes(found) == planned_bytes(found.spec, files.checkpoint.tensors)


def loaded_bytes(model) -> int:
    """Of experts."""
    return sum(part.nbytes for part in model.modules() if isinstance(part, ExpertMatrices))


def planned_bytes(spec, tensors, size: int = 1) -> float:
    held = held_weights(spec, tensors, "float32", ops.packed_storages(), size)
    return sum(part.nbytes for part in held if part.tensor.role == "experts")


@pytest.mark.skipif(not ops.can_pack("cpu"), reason="the native kernels are not built here")
@pytest.mark.parametrize(
    ("family", "method", "storage"),
    [
        *((family, "int4", "Q4_1") for family in FAMILIES),
        ("qwen3_vl_moe", "int8", "Q8_0"), ("qwen3_vl_moe", "fp8", "Q8_0"),
    ],
)  # fmt: skip
def test_rounded_as_they_load(family, method, storage, tmp_path, caplog):
    """The same bits in every layout; planned and said is what is done."""
    caplog.set_level(logging.INFO, logger="pagoda")
    logits = []
    for layout in expert_layouts.LAYOUTS:
        folder = tmp_path / layout
        folder.mkdir()
        expert_layouts.write(folder, family, layout, FORMATS["plain"])
        config = ModelConfig(str(folder), quantization=method)
        files = open_model(folder)
        spec = spec_of(files, config)
        caplog.clear()
        checkpoint = checkpoint_of(files, spec, ResolvedModel("float32", method, False, 64, seed=0))
        model = build_model(spec, checkpoint, dtype=torch.float32, device="cpu", packed=True)
        logits.append(Driver(model).run(IDS, 12))
        experts = [part for part in model.modules() if isinstance(part, ExpertMatrices)]
        kinds = {matrix.storage for part in experts for matrix in part.format.operand(None).parts}
        assert kinds == {storage}
        assert loaded_bytes(model) == planned_bytes(spec, checkpoint.tensors)
        before = files.checkpoint.tensors
        done = Counter(x.type for name, x in checkpoint.tensors.items() if x != before[name])
        said = re.findall(r"(\d+) tensors to (Q\w+)", caplog.text)
        assert {kind: int(count) for count, kind in said} == done
    assert all(torch.equal(found, logits[0]) for found in logits)


def test_what_rounding_leaves_is_said():
    """Towers have rows of 4304, which are no whole blocks."""
    spec = spec_for(QWEN3_VL_30B, {}, ())
    names = {source for rule in spec.expanded_weights() for source in rule.sources}
    widths = {name: 4304 if "linear_fc2" in name and "blocks" in name else 1152 for name in names}
    tensors = {
        name: TensorInfo(name, (16, width), "BF16", 32 * width) for name, width in widths.items()
    }
    said = rounding_in_words(spec, tensors, "int8")
    left = r"leaves model\.visual\.blocks\.0\.mlp\.linear_fc2\.weight and 26 more"
    assert re.search(left, said), said
    rounded = quantized_tensors(spec, tensors, "int8")
    assert sum("fc2.weight" in n and x.type == "BF16" for n, x in rounded.items()) == 27
    assert f" {sum(x.type == 'Q8_0' for x in rounded.values()):,} tensors to Q8_0" in said


RANKS = [
    ("qwen3_vl_moe", "transposed", "fp8 blocks"), ("qwen3_moe", "stacked", "fp8 blocks"),
    ("gemma4", "single", "compressed fp8"), ("llama4", "transposed", "fp8 rows"),
    ("qwen3_5_moe", "single", "fp8 blocks"), ("gpt_oss", "transposed", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "layout", "format"), RANKS)
def test_ranks_read_their_own_experts(family, layout, format, tmp_path):
    reference = expert_layouts.write(tmp_path, family, layout, FORMATS[format])
    expected = tiny.reference_logits(reference, IDS)
    spec = published.load(tmp_path).spec

    def run(parallel: Parallel) -> tuple[torch.Tensor, int]:
        checkpoint = RecordingCheckpoint(open_model(tmp_path).checkpoint)
        options = {"dtype": torch.float32, "device": "cpu", "parallel": parallel}
        model = build_model(spec, checkpoint, **options)
        read = {name: n for name, n in checkpoint.bytes_read.items() if is_matrix(name)}
        return Driver(model).run(IDS, 12), sum(read.values())

    tensors = open_model(tmp_path).checkpoint.tensors
    whole = sum(info.nbytes for name, info in tensors.items() if is_matrix(name))
    # Where gate and up lie row by row in turn, each is read with the other.
    bound = whole if family == "gpt_oss" else whole // 2
    for logits, read in on_ranks(2, run):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert 0 < read <= bound
    if ops.packed_storages():
        options = {"dtype": torch.float32, "device": "cpu", "packed": True}
        second = build_model(
            spec, open_model(tmp_path).checkpoint, parallel=Parallel(1, 2), **options
        )
        assert loaded_bytes(second) == planned_bytes(spec, tensors, 2)


def is_matrix(name: str) -> bool:
    return ".experts." in name and "bias" not in name
