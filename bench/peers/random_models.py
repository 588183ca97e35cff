"""GGUF files of random weights in shapes that people run, with the default model's tokenizer.

Speed does not depend on what weights say, only on their formats and shapes. Blocks are random
bytes, their scales such that weights have a standard deviation of about 0.02.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
class Tensor:
    name: str
    rows: int
    """0 for a vector."""
    columns: int
    copies: int = 0
    """Matrices in it, one for each expert; 0: it is one."""
    plain: bool = False
    """In fp32 whatever the format."""


@dataclass(frozen=True)
class Shape:
    """A Llama, with experts a mixture of Qwen3's, with deepstack the text side of a Qwen3-VL."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int = 0
    """0: the tokenizer's, and the head is the embedding table."""
    head_dim: int = 0
    """0: the hidden size over the heads."""
    experts: int = 0
    used: int = 0
    """Experts that a token goes to."""
    deepstack: int = 0
    """Layers behind which something of a picture is added."""

    @property
    def architecture(self) -> str:
        if self.experts:
            return "qwen3moe"
        return "qwen3vl" if self.deepstack else "llama"

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    def tensors(self, tokens: int) -> Iterator[Tensor]:
        """`tokens`: the tokenizer's."""
        yield Tensor("token_embd", self.vocabulary or tokens, self.hidden)
        yield Tensor("output_norm", 0, self.hidden)
        if self.vocabulary:
            yield Tensor("output", self.vocabulary, self.hidden)
        for layer in range(self.layers):
            for tensor in (*self._attention(), *self._mlp()):
                yield replace(tensor, name=f"blk.{layer}.{tensor.name}")

    def _attention(self) -> Iterator[Tensor]:
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        yield Tensor("attn_norm", 0, self.hidden)
        yield Tensor("attn_q", q, self.hidden)
        yield Tensor("attn_k", kv, self.hidden)
        yield Tensor("attn_v", kv, self.hidden)
        yield Tensor("attn_output", self.hidden, q)
        if self.architecture != "llama":
            yield Tensor("attn_q_norm", 0, self.head_size)
            yield Tensor("attn_k_norm", 0, self.head_size)

    def _mlp(self) -> Iterator[Tensor]:
        names = [f"ffn_{name}{'_exps' * bool(self.experts)}" for name in ("gate", "up", "down")]
        yield Tensor("ffn_norm", 0, self.hidden)
        if self.experts:
            yield Tensor("ffn_gate_inp", self.experts, self.hidden, plain=True)
        yield Tensor(names[0], self.mlp, self.hidden, self.experts)
        yield Tensor(names[1], self.mlp, self.hidden, self.experts)
        yield Tensor(names[2], self.hidden, self.mlp, self.experts)


SHAPES = {
    # Qwen3-1.7B's depth and width; with the default model's vocabulary, a wider MLP makes it 1.7B.
    "1.7b": Shape(layers=28, hidden=2048, heads=16, kv_heads=8, mlp=7168),
    # Llama 3 8B.
    "8b": Shape(layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14336, vocabulary=128256),
    # Qwen3-30B-A3B with a quarter of its 48 layers, for each contender holds its own.
    "30b-a3b": Shape(
        layers=12, hidden=2048, heads=32, kv_heads=4, mlp=768, vocabulary=151936, head_dim=128,
        experts=128, used=8,
    ),
    # Qwen3-VL-2B's text side with as many of its 28 layers as deepstack adds to.
    "qwen3-vl-2b-text": Shape(
        layers=3, hidden=2048, heads=16, kv_heads=8, mlp=6144, head_dim=128, deepstack=3
    ),
}  # fmt: skip
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
    writer = gguf.GGUFWriter(path, shape.architecture)
    tokens = _copy_tokenizer(gguf.GGUFReader(tokenizer), writer, shape.vocabulary)
    _describe(writer, shape)
    tensors = list(shape.tensors(tokens))
    types = {one.name: _type(one, shape, storage) for one in tensors}
    for one in tensors:
        kind = types[one.name]
        size = _row_bytes(kind, one.columns)
        stack = (one.copies, one.rows) if one.copies else (one.rows,)
        if one.rows and not one.plain:
            writer.add_tensor_info(
                f"{one.name}.weight", (*stack, size), np.dtype(np.uint8), math.prod(stack) * size,
                raw_dtype=kind,
            )  # fmt: skip
        else:
            plain = (one.rows, one.columns) if one.rows else (one.columns,)
            writer.add_tensor_info(
                f"{one.name}.weight", plain, np.dtype(np.float32), math.prod(plain) * 4
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    makers = {kind: row_maker(kind, rng) for kind in set(types.values())}
    for one in tensors:
        if one.rows:
            data = makers[types[one.name]](one.rows * max(1, one.copies), one.columns)
        else:
            data = np.ones(one.columns, np.float32)
        writer.write_tensor_data(data)
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"Random {shape.architecture}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.deepstack:
        writer.add_num_deepstack_layers(shape.deepstack)
        half = shape.head_size // 2
        writer.add_rope_dimension_sections([half - half // 3 * 2, half // 3, half // 3, 0])
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.mlp)


def _type(tensor: Tensor, shape: Shape, storage: str) -> gguf.GGMLQuantizationType:
    """llama-quantize's `--pure` for a format; for q4_k_m its mixture."""
    name = tensor.name
    if tensor.plain:
        return _Type.F32
    if storage != "q4_k_m":
        return _Type[storage.upper()]
    if name == "output" or (name == "token_embd" and not shape.vocabulary):
        return _Type.Q6_K
    if "attn_v" not in name and "ffn_down" not in name:
        return _Type.Q4_K
    layer, eighth = int(name.split(".")[1]), shape.layers // 8
    outer = layer < eighth or layer >= 7 * shape.layers // 8
    return _Type.Q6_K if outer or (layer - eighth) % 3 == 2 else _Type.Q4_K


def _row_bytes(kind: gguf.GGMLQuantizationType, columns: int) -> int:
    weights, size = GGML_QUANT_SIZES[kind]
    return columns // weights * size


def row_maker(
    kind: gguf.GGMLQuantizationType, rng: np.random.Generator
) -> Callable[[int, int], np.ndarray]:
    """Makes so many rows of so many columns: uint8 [rows, bytes of a row], or fp32 or fp16 [rows,
    columns]."""
    size = GGML_QUANT_SIZES[kind][1]
    if kind in (_Type.F32, _Type.F16):
        dtype = np.float32 if kind is _Type.F32 else np.float16
        return lambda rows, columns: (
            rng.standard_normal((rows, columns), np.float32) * np.float32(_DEVIATION)
        ).astype(dtype)
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
