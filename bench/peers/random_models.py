"""GGUF files of random weights in shapes that people run, with the default model's tokenizer.

Speed does not depend on what weights say, only on their formats and shapes.
"""

import math
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from bench.peers.random_rows import row_bytes, row_maker
from bench.peers.shapes.decoder import Decoder, Tensor
from bench.peers.shapes.formats import type_of


def write_random_model(path: Path, shape: Decoder, storage: str, tokenizer: Path) -> None:
    """A GGUF file, written tensor by tensor. `storage`: one of `FORMATS`; `tokenizer`: a GGUF
    file that has one."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    tokens = _copy_tokenizer(gguf.GGUFReader(tokenizer), writer, shape.vocabulary)
    shape.describe(writer)
    tensors = [(one, type_of(one, shape, storage)) for one in shape.tensors(tokens)]
    for one, kind in tensors:
        _announce(writer, one, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    makers = {kind: row_maker(kind, rng) for kind in {kind for _, kind in tensors}}
    for one, kind in tensors:
        if one.rows:
            data = makers[kind](one.rows * max(1, one.copies), one.columns)
        else:
            data = np.resize(np.array(one.values, np.float32), one.columns)
        writer.write_tensor_data(data)
    writer.close()


def _announce(writer: gguf.GGUFWriter, tensor: Tensor, kind: Type) -> None:
    if kind is Type.F32:
        shape = (tensor.rows, tensor.columns) if tensor.rows else (tensor.columns,)
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), math.prod(shape) * 4)
        return
    stack = (tensor.copies, tensor.rows) if tensor.copies else (tensor.rows,)
    shape = (*stack, row_bytes(kind, tensor.columns))
    writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=kind)


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
