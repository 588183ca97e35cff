"""GGUF files of random weights in shapes that people run, with the default model's tokenizer.

Speed does not depend on what weights say, only on their formats and shapes. Blocks are random
bytes, their scales such that weights have a standard deviation of about 0.02.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

_Type = gguf.GGMLQuantizationType
_DEVIATION = 0.02
# Rows that are made at a time: the tensors of an 8B model do not fit a small memory twice.
_ROWS = 4096


@dataclass(frozen=True)
class Shape:
    """A Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int = 0
    """0: the tokenizer's, and the head is the embedding table."""

    def tensors(self, tokens: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of each; 0 rows for a vector. `tokens`: the tokenizer's."""
        kv = self.hidden // self.heads * self.kv_heads
        yield "token_embd", self.vocabulary or tokens, self.hidden
        yield "output_norm", 0, self.hidden
        if self.vocabulary:
            yield "output", self.vocabulary, self.hidden
        for layer in range(self.layers):
            for name, rows, columns in (
                ("attn_norm", 0, self.hidden),
                ("attn_q", self.hidden, self.hidden),
                ("attn_k", kv, self.hidden),
                ("attn_v", kv, self.hidden),
                ("attn_output", self.hidden, self.hidden),
                ("ffn_norm", 0, self.hidden),
                ("ffn_gate", self.mlp, self.hidden),
                ("ffn_up", self.mlp, self.hidden),
                ("ffn_down", self.hidden, self.mlp),
            ):
                yield f"blk.{layer}.{name}", rows, columns


SHAPES = {
    # Qwen3-1.7B's depth and width; with the default model's vocabulary, a wider MLP makes it 1.7B.
    "1.7b": Shape(layers=28, hidden=2048, heads=16, kv_heads=8, mlp=7168),
    # Llama 3 8B.
    "8b": Shape(layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14336, vocabulary=128256),
}
FORMATS = (
    "q4_0", "q4_1", "q5_k", "q6_k", "q8_0", "q4_k_m", "iq4_xs", "q2_k", "iq2_xs", "mxfp4", "bf16",
)  # fmt: skip

# Where a block has its fp16 scale and, behind it, its fp16 minimum; and the minimum that centers
# random codes, in scales.
_SCALES = {
    _Type.Q4_0: (0, 0.0),
    _Type.Q4_1: (0, -7.5),
    _Type.Q8_0: (0, 0.0),
    _Type.Q2_K: (80, 1.5),
    _Type.Q4_K: (0, 7.5),
    _Type.Q5_K: (0, 15.5),
    _Type.Q6_K: (208, 0.0),
    _Type.IQ2_XS: (0, 0.0),
    _Type.IQ4_XS: (0, 0.0),
}


def write_random_model(path: Path, shape: Shape, storage: str, tokenizer: Path) -> None:
    """A GGUF file, written tensor by tensor. `storage`: one of `FORMATS`; `tokenizer`: a GGUF
    file that has one."""
    writer = gguf.GGUFWriter(path, "llama")
    tokens = _copy_tokenizer(gguf.GGUFReader(tokenizer), writer, shape.vocabulary)
    writer.add_name("Random Llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tensors = [(f"{name}.weight", *size) for name, *size in shape.tensors(tokens)]
    types = {name: _type(name, shape, storage) for name, _, _ in tensors}
    for name, rows, columns in tensors:
        size = _row_bytes(types[name], columns)
        if rows:
            writer.add_tensor_info(
                name, (rows, size), np.dtype(np.uint8), rows * size, raw_dtype=types[name]
            )
        else:
            writer.add_tensor_info(name, (columns,), np.dtype(np.float32), columns * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    makers = {kind: _row_maker(kind, rng) for kind in set(types.values())}
    for name, rows, columns in tensors:
        data = makers[types[name]](rows, columns) if rows else np.ones(columns, np.float32)
        writer.write_tensor_data(data)
    writer.close()


def _type(name: str, shape: Shape, storage: str) -> gguf.GGMLQuantizationType:
    """llama-quantize's `--pure` for a format; for q4_k_m its mixture."""
    if storage != "q4_k_m":
        return _Type[storage.upper()]
    if name.startswith("output.") or (name.startswith("token_embd.") and not shape.vocabulary):
        return _Type.Q6_K
    if "attn_v" not in name and "ffn_down" not in name:
        return _Type.Q4_K
    layer, eighth = int(name.split(".")[1]), shape.layers // 8
    outer = layer < eighth or layer >= 7 * shape.layers // 8
    return _Type.Q6_K if outer or (layer - eighth) % 3 == 2 else _Type.Q4_K


def _row_bytes(kind: gguf.GGMLQuantizationType, columns: int) -> int:
    weights, size = GGML_QUANT_SIZES[kind]
    return columns // weights * size


def _row_maker(
    kind: gguf.GGMLQuantizationType, rng: np.random.Generator
) -> Callable[[int, int], np.ndarray]:
    """Makes uint8 [rows, bytes of a row], of as many rows and columns."""
    size = GGML_QUANT_SIZES[kind][1]
    if kind is _Type.BF16:
        return lambda rows, columns: _random_bf16(rng, rows, columns)
    scale = 1.0
    sample = rng.integers(0, 256, (256, size), np.uint8)
    _set_scale(kind, sample, scale)
    scale = _DEVIATION / float(dequantize(sample, kind).std())

    def make(rows: int, columns: int) -> np.ndarray:
        blocks = _row_bytes(kind, columns) // size
        out = np.empty((rows, blocks, size), np.uint8)
        for start in range(0, rows, _ROWS):
            part = out[start : start + _ROWS]
            part[:] = rng.integers(0, 256, part.shape, np.uint8)
            _set_scale(kind, part, scale)
        return out.reshape(rows, -1)

    return make


def _set_scale(kind: gguf.GGMLQuantizationType, blocks: np.ndarray, scale: float) -> None:
    """In place; blocks: uint8 [..., bytes of a block]."""
    if kind is _Type.MXFP4:
        blocks[..., 0] = 128 + round(np.log2(scale))  # an exponent; values count in halves
        return
    offset, minimum = _SCALES[kind]
    blocks[..., offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
    if minimum:
        pair = np.array([scale * minimum], np.float16).view(np.uint8)
        blocks[..., offset + 2 : offset + 4] = pair


def _random_bf16(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    out = np.empty((rows, 2 * columns), np.uint8)
    for start in range(0, rows, _ROWS):
        part = out[start : start + _ROWS]
        values = rng.standard_normal((len(part), columns), np.float32) * np.float32(_DEVIATION)
        part[:] = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return out


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, vocabulary: int) -> int:
    """The number of its tokens, which fillers bring to `vocabulary` where that is more."""
    fields = {name: field for name, field in reader.fields.items() if name.startswith("tokenizer.")}
    tokens = len(fields["tokenizer.ggml.tokens"].contents())
    more = range(tokens, vocabulary)
    fillers = {
        "tokenizer.ggml.tokens": [f"<filler {i}>" for i in more],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED) for _ in more],
    }
    for name, field in fields.items():
        value = field.contents()
        if name in fillers:
            value = [*value, *fillers[name]]
        writer.add_key_value(
            name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None
        )
    return tokens
