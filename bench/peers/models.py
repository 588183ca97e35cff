"""The files that are measured, made on first use under `.cache/peers/models`."""

from collections.abc import Callable
from pathlib import Path

from bench.peers import environments
from bench.peers.environments import Environment, run_logged
from bench.peers.paths import CACHE, MODELS, ROOT, WORKERS
from bench.peers.random_models import write_random_model
from bench.peers.random_tower import QWEN3_VL_2B, TOWER_FORMATS, write_random_tower
from bench.peers.shapes.formats import FORMATS
from bench.peers.shapes.table import SHAPES
from pagoda.config.engine import ModelConfig
from pagoda.engine.served.text_side import fetch_model
from pagoda.weights.files import open_model
from pagoda.weights.hub.models import pull

GGUF_FILES = ("q4_1", "q8_0", "q4_0", "q4_k_m", "q6_k", "bf16")
"""The default model: as it comes, and as llama.cpp's quantizer makes it from that."""
BIG_FILES = (
    *(f"1.7b_{storage}" for storage in FORMATS),
    "qwen3-4b_q4_0", "8b_q4_k_m", "8b-half_q8_0",
    "30b-a3b_q4_k_m", "gpt-oss_mxfp4", "gemma4-26b-a4b_q4_0", "qwen3.6-35b-a3b_q4_k_m",
)  # fmt: skip
"""Random weights in shapes that no cache holds."""
VECTOR_FILES = ("minilm",)
"""Encoders, which make vectors of texts."""
_TOWER = "qwen3-vl-2b_"
TOWER_FILES = tuple(_TOWER + storage for storage in TOWER_FORMATS)
"""Vision towers of random weights, which make embeddings of pictures."""
TOWERS_MODEL = "qwen3-vl-2b-text"
"""What the towers are a part of: few layers, for it is loaded and not used."""


def model_path(name: str) -> Path:
    """A file or folder. Raises SetupError where what makes it cannot be had."""
    if name == "q4_1":
        return Path(fetch_model(ModelConfig()).model)
    if name in VECTOR_FILES:
        return pull(name)
    path = MODELS / (name if name in ("hf", "onnx") else f"{name}.gguf")
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished-" + path.name)
        _maker(name)(unfinished)
        unfinished.rename(path)
    return path


def streamed_bytes(path: Path) -> int:
    """Bytes of weights that a token's step reads: all, but a table that is only looked up in, and
    experts that it does not go to."""
    files = open_model(path)
    tensors, metadata = files.checkpoint.tensors, files.metadata
    kind = metadata["general.architecture"]
    used = metadata.get(f"{kind}.expert_used_count", 1) / metadata.get(f"{kind}.expert_count", 1)
    total = sum(info.nbytes * (used if "_exps." in name else 1) for name, info in tensors.items())
    has_head = "output.weight" in tensors
    return int(total) - (tensors["token_embd.weight"].nbytes if has_head else 0)


def _maker(name: str) -> Callable[[Path], None]:
    if name == "hf":
        return lambda path: _run(
            environments.TRANSFORMERS, str(WORKERS / "export_hf.py"), str(model_path("bf16")),
            str(path),
        )  # fmt: skip
    if name == "onnx":
        return _make_onnx
    if name in TOWER_FILES:
        storage = name.removeprefix(_TOWER)
        return lambda path: write_random_tower(path, QWEN3_VL_2B, storage)
    if name == TOWERS_MODEL:
        shape = SHAPES[name]
        return lambda path: write_random_model(path, shape, "q8_0", model_path("q4_1"))
    if name in BIG_FILES:
        size, _, storage = name.partition("_")
        return lambda path: write_random_model(path, SHAPES[size], storage, model_path("q4_1"))
    return lambda path: _run(
        environments.LLAMA, str(WORKERS / "quantize.py"), str(model_path("q4_1")), str(path),
        name.upper(),
    )  # fmt: skip


def _make_onnx(path: Path) -> None:
    _run(
        environments.ORT, "-m", "onnxruntime_genai.models.builder", "-i", str(model_path("hf")),
        "-o", str(path), "-p", "int4", "-e", "cpu", "-c", str(CACHE / "onnx-cache"),
        "--extra_options", "int4_block_size=32", "int4_accuracy_level=4",
    )  # fmt: skip


def _run(environment: Environment, *words: str) -> None:
    command = [str(environment.ready()), *words]
    run_logged(command, CACHE / "models.log", PYTHONPATH=str(ROOT))
