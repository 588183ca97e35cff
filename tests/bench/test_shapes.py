"""Shapes of the files of random weights, against those that llama.cpp's converter writes and those
that are published."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from bench.peers.models import BIG_FILES, streamed_bytes
from bench.peers.random_models import write_random_model
from bench.peers.shapes.decoder import Decoder
from bench.peers.shapes.formats import type_of
from bench.peers.shapes.gemma4 import Gemma4Moe
from bench.peers.shapes.gpt_oss import GptOss
from bench.peers.shapes.llama import Llama, Qwen3, Qwen3Moe
from bench.peers.shapes.qwen35 import Qwen35Moe
from bench.peers.shapes.table import SHAPES
from pagoda.arch.registry import spec_for
from pagoda.models.loader import build_model
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from tests.models.driver import Driver

GOLDEN = Path(__file__).parents[1] / "golden" / "llama_cpp"
_SIZES = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocabulary": 96}
_EXPERTS = {"experts": 4, "used": 2, "expert_mlp": 256}
# The name of a golden file, a tiny shape of its architecture, and the format it is measured in.
TINY: list[tuple[str, Decoder, str]] = [
    ("llama", Llama(layers=2, mlp=256, **_SIZES), "q4_k_m"),
    ("qwen3", Qwen3(layers=2, mlp=256, tied=True, **_SIZES), "q4_0"),
    ("qwen3moe", Qwen3Moe(layers=2, **_EXPERTS, **_SIZES), "q4_k_m"),
    ("gpt-oss", GptOss(layers=2, window=4, **_EXPERTS, **_SIZES), "mxfp4"),
    (
        "gemma4moe",
        Gemma4Moe(
            layers=6, mlp=256, window=4, global_kv_heads=1, global_head_dim=128, tied=True,
            **_EXPERTS, **_SIZES,
        ),
        "q4_0",
    ),
    (
        "qwen35moe",
        Qwen35Moe(
            layers=4, shared_mlp=256, turning=64, key_heads=2, value_heads=4, state=64,
            conv_width=4, **_EXPERTS, **_SIZES,
        ),
        "q4_k_m",
    ),
]  # fmt: skip
# Metadata that says no more than tensors and other fields do.
IMPLIED = {"vocab_size", "rope.dimension_count", "attention.recurrent_layers"}
# As llama-bench tells them: layers, tensors, parameters in billions, GiB where the published file
# has these formats throughout.
PUBLISHED = {
    "qwen3-4b_q4_0": (36, 398, 4.02, None),
    "8b_q4_k_m": (32, 291, 8.03, 4.58),
    "8b-half_q8_0": (32, 291, 8.03, 7.95),
    "30b-a3b_q4_k_m": (48, 579, 30.53, 17.28),
    "gpt-oss_mxfp4": (24, 459, 20.91, 11.27),
    "gemma4-26b-a4b_q4_0": (30, 658, 25.23, None),
    "qwen3.6-35b-a3b_q4_k_m": (40, 733, 34.66, None),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A tiny file of each architecture, with a golden file's tokenizer."""
    folder = tmp_path_factory.mktemp("shapes")
    tokenizer = golden("llama", folder)
    for name, shape, storage in TINY:
        write_random_model(folder / f"{name}.gguf", shape, storage, tokenizer)
    return folder


def golden(name: str, folder: Path) -> Path:
    path = folder / f"golden-{name}.gguf"
    np.load(GOLDEN / f"{name}.npz")["gguf"].tofile(path)
    return path


def unnumbered(reader: gguf.GGUFReader) -> set[tuple[str, int]]:
    """Names without their layers, and how many dimensions tensors have that are not of size 1."""
    return {
        (re.sub(r"^blk\.\d+\.", "", one.name), sum(size != 1 for size in one.shape))
        for one in reader.tensors
    }


@pytest.mark.parametrize("name", [name for name, *_ in TINY])
def test_files_have_what_the_converter_writes(name, files):
    ours, theirs = (gguf.GGUFReader(path) for path in (files / f"{name}.gguf", golden(name, files)))
    tied = {("output.weight", 2)} - unnumbered(ours)
    assert unnumbered(ours) == unnumbered(theirs) - tied
    told = {key for key in theirs.fields if not key.startswith(("general.", "tokenizer.", "GGUF"))}
    assert {key.partition(".")[2] for key in told - ours.fields.keys()} <= IMPLIED
    kind = ours.fields["general.architecture"].contents()
    assert kind == theirs.fields["general.architecture"].contents()


@pytest.mark.parametrize("name", [name for name, *_ in TINY])
def test_files_are_loaded_and_read(name, files):
    checkpoint = GgufCheckpoint(files / f"{name}.gguf")
    spec = spec_for(None, checkpoint.metadata, checkpoint.tensors)
    model = build_model(spec, checkpoint, dtype=torch.float32, device="cpu")
    logits = Driver(model).run(list(range(8)), chunk=5)
    assert logits.isfinite().all()
    assert (logits[1:] != logits[:-1]).any(dim=1).all()


def test_big_files_are_as_large_as_those_that_people_download():
    assert PUBLISHED.keys() == {name for name in BIG_FILES if not name.startswith("1.7b_")}
    for file, (layers, tensors, parameters, gib) in PUBLISHED.items():
        name, _, storage = file.partition("_")
        shape = replace(SHAPES[name], layers=layers)
        found = [
            (one.columns * max(1, one.rows) * max(1, one.copies), type_of(one, shape, storage))
            for one in shape.tensors(0)
        ]
        assert len(found) == tensors
        assert round(sum(size for size, _ in found) / 1e9, 2) == parameters
        if gib is not None:
            assert round(stored_bytes(found) / 2**30, 2) == gib


def stored_bytes(found) -> float:
    quant = gguf.GGML_QUANT_SIZES
    return sum(size / quant[kind][0] * quant[kind][1] for size, kind in found)


def test_formats_are_those_of_the_published_files():
    """ggml-org's gpt-oss-20b: counts as llama.cpp prints them when it loads it."""
    shape = replace(SHAPES["gpt-oss"], layers=24)
    kinds = Counter(type_of(one, shape, "mxfp4").name for one in shape.tensors(0))
    assert kinds == {"F32": 289, "Q8_0": 98, "MXFP4": 72}


@pytest.mark.parametrize("name", [name for name, *_ in TINY])
def test_a_step_streams_used_experts_and_one_table(name, files):
    path = files / f"{name}.gguf"
    shape = next(shape for other, shape, _ in TINY if other == name)
    sizes = {one.name: int(one.n_bytes) for one in gguf.GGUFReader(path).tensors}
    unread = sum(size for tensor, size in sizes.items() if "_exps" in tensor) // 2
    assert bool(unread) == bool(shape.experts)
    if not shape.tied:
        unread += sizes["token_embd.weight"]
    assert streamed_bytes(path) == sum(sizes.values()) - unread
