"""The files that are measured, made on first use under `.cache/peers/models`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.peers import environments
from bench.peers.environments import Environment, run_logged
from bench.peers.paths import CACHE, MODELS, ROOT, WORKERS
from pagoda.config.engine import ModelConfig
from pagoda.engine.served.text_side import fetch_model
from pagoda.weights.files import open_model

GGUF_FILES = ("q4_1", "q8_0", "q4_0", "q4_k_m", "q6_k", "bf16")
"""The default model: as it comes, and as llama.cpp's quantizer makes it from that."""
BIG_FILES = ("1.7b_q8_0", "1.7b_q4_k_m")
"""Random weights in a shape that no cache holds."""

# Qwen3-1.7B's depth and width; with the default model's vocabulary, a wider MLP makes it 1.7B.
_LAYERS, _HIDDEN, _HEADS, _KV_HEADS, _MLP = 28, 2048, 16, 8, 7168
_CONTEXT = 8192


def model_path(name: str) -> Path:
    """A file or folder. Raises SetupError where what makes it cannot be had."""
    if name == "q4_1":
        return Path(fetch_model(ModelConfig()).model)
    path = MODELS / (name if name in ("hf", "onnx") else f"{name}.gguf")
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished-" + path.name)
        _maker(name)(unfinished)
        unfinished.rename(path)
    return path


def streamed_bytes(path: Path) -> int:
    """Bytes of weights that a token's step reads: all, but a table that is only looked up in."""
    tensors = open_model(path).checkpoint.tensors
    total = sum(info.nbytes for info in tensors.values())
    has_head = "output.weight" in tensors
    return total - (tensors["token_embd.weight"].nbytes if has_head else 0)


def _maker(name: str) -> Callable[[Path], None]:
    if name == "hf":
        return lambda path: _run(
            environments.TRANSFORMERS, str(WORKERS / "export_hf.py"), str(model_path("bf16")),
            str(path),
        )  # fmt: skip
    if name == "onnx":
        return _make_onnx
    if name == "1.7b_q8_0":
        return write_random_llama
    source, _, storage = ("q4_1", "", name) if name in GGUF_FILES else ("1.7b_q8_0", "", name[5:])
    return lambda path: _run(
        environments.LLAMA, str(WORKERS / "quantize.py"), str(model_path(source)), str(path),
        storage.upper(),
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


def write_random_llama(path: Path) -> None:
    """Q8_0 tensors of random bytes, with the default model's tokenizer. Streamed: 1.8 GB."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    _copy_tokenizer(gguf.GGUFReader(model_path("q4_1")), writer)
    writer.add_name("Random Llama 1.7B")
    writer.add_block_count(_LAYERS)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_MLP)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    vocabulary = len(open_model(model_path("q4_1")).metadata["tokenizer.ggml.tokens"])
    shapes = _big_shapes(vocabulary)
    for name, (rows, columns) in shapes.items():
        if rows:
            writer.add_tensor_info(
                name, (rows, columns // 32 * 34), np.dtype(np.uint8), rows * columns // 32 * 34,
                raw_dtype=gguf.GGMLQuantizationType.Q8_0,
            )  # fmt: skip
        else:
            writer.add_tensor_info(name, (columns,), np.dtype(np.float32), columns * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for rows, columns in shapes.values():
        writer.write_tensor_data(_random_q8(rng, rows, columns) if rows else _ones(columns))
    writer.close()


def _big_shapes(vocabulary: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of each tensor; 0 rows for a vector. The head is tied, as the default's."""
    kv = _HIDDEN // _HEADS * _KV_HEADS
    shapes = {"token_embd.weight": (vocabulary, _HIDDEN), "output_norm.weight": (0, _HIDDEN)}
    for layer in range(_LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (0, _HIDDEN),
                "attn_q": (_HIDDEN, _HIDDEN),
                "attn_k": (kv, _HIDDEN),
                "attn_v": (kv, _HIDDEN),
                "attn_output": (_HIDDEN, _HIDDEN),
                "ffn_norm": (0, _HIDDEN),
                "ffn_gate": (_MLP, _HIDDEN),
                "ffn_up": (_MLP, _HIDDEN),
                "ffn_down": (_HIDDEN, _MLP),
            }.items()
        }
    return shapes


def _random_q8(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Blocks of a half and 32 signed bytes; weights have a standard deviation of about 0.02."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 34), np.uint8)
    scale = np.array([0.02 / 74], np.float16)  # 74: that of bytes drawn evenly
    blocks[:, :, :2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def _ones(size: int) -> np.ndarray:
    return np.ones(size, np.float32)


def _copy_tokenizer(reader: "gguf.GGUFReader", writer: "gguf.GGUFWriter") -> None:  # noqa: F821 - imported late
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), kind, sub)
