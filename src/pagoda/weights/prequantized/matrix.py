"""One matrix out of the tensors of a quantized layer, and its rows in a storage format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.quantize import widened

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_BLOCK = 32


def _e4m3() -> Floats:
    """The 256 numbers of E4M3 without infinities (OCP OFP8): 0x7F and 0xFF are NaN."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, (codes & 7) / 8
    positive = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    positive[127] = np.nan
    return np.concatenate((positive, -positive)).astype(np.float32)


E4M3 = _e4m3()

_MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
E2M1 = np.array((*_MAGNITUDES, *(-x for x in _MAGNITUDES)), np.float32)
"""The 16 numbers of E2M1 (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True)
class Layer:
    """A layer's tensors by the last part of their names: `qweight`, `scales`, ..."""

    name: str
    parts: Mapping[str, TensorInfo]
    source: Checkpoint
    """What they are read from: of some formats sizes are no header's business."""
    stack: int = 0
    """It stands for one of so many experts' (`prequantized.stack`); 0 for a layer of its own."""

    @property
    def matrix_name(self) -> str:
        """The name of the one matrix that is made of them; experts' in one tensor keep its name."""
        weight = self.parts.get("weight")
        return f"{self.name}.weight" if weight is None else weight.name

    def part(self, name: str) -> TensorInfo:
        """CheckpointError where it is missing."""
        if name not in self.parts:
            raise CheckpointError(
                f"The quantized layer {self.name} lacks the tensor {name}; the checkpoint is "
                "incomplete, or its quantization_config belongs to another."
            )
        return self.parts[name]

    def sizes(self, name: str) -> tuple[int, int]:
        """Sizes of a part that must be a matrix."""
        info = self.part(name)
        if len(info.shape) != 2 or 0 in info.shape:
            raise self.misshapen(info, "a matrix, or one of each expert")
        return info.shape[0], info.shape[1]

    def check(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The part, if it has that shape."""
        info = self.part(name)
        if info.shape != shape:
            raise self.misshapen(info, f"the shape {list(shape)}")
        return info

    def misshapen(self, info: TensorInfo, wanted: str) -> CheckpointError:
        whose = f" for each of {self.stack} experts" if self.stack else ""
        return CheckpointError(
            f"Tensor {info.name} has the shape {list(info.shape)}{whose}, but the layer's other "
            f"tensors and quantization_config ask for {wanted}; one of them belongs to another "
            "model."
        )


@dataclass(frozen=True)
class Fields:
    """A slice of a matrix: column c is (codes - zeros) * scales, zeros and scales of its group."""

    codes: Bytes
    """[rows, columns]: unsigned, of INT8 signed bytes, of FP8 numbers of E4M3, of FP4 of E2M1."""
    scales: Floats
    """[rows, groups]"""
    zeros: Bytes | None
    """[rows, groups]; None where the storage format has a fixed one."""
    group_of: Indices
    """The group of each column, [columns]."""


class Made(Protocol):
    """What a method makes of a layer."""

    layer: Layer
    info: TensorInfo

    @property
    def parts(self) -> frozenset[str]:
        """The layer's parts that it is made of."""

    def read(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        """uint8 [rows, bytes per row] in the storage format of `info`; with a first dimension of
        experts the rows of all lie behind each other."""


class Matrix(ABC):
    """One matrix [out_features, in_features] of codes, and scales that runs of columns share."""

    def __init__(self, layer: Layer, shape: tuple[int, int], kind: str, group_size: int):
        """`shape` is [out_features, in_features]. `kind` is INT4, UINT4, INT8, UINT8, FP8 or FP4.
        `group_size` is the run of columns that share a scale; 0 where these lie scattered."""
        self.layer = layer
        self.kind = kind
        columns = shape[-1]
        whole_blocks = group_size == columns or (group_size > 0 and group_size % _BLOCK == 0)
        fits = kind in FORMATS and whole_blocks and columns % _BLOCK == 0
        storage = kind if fits else "DECODED"
        nbytes = FORMATS[storage].nbytes(prod(shape))
        group = group_size if fits else 0
        self.info = TensorInfo(layer.matrix_name, shape, storage, nbytes, group)

    @property
    @abstractmethod
    def parts(self) -> frozenset[str]:
        """The layer's parts that it is made of."""

    @abstractmethod
    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        """That slice; `columns` lie on blocks of 32 unless the storage format is DECODED."""

    def read(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        """uint8 [rows, bytes per row] in the storage format of `info`."""
        fields = self.fields(source, rows, columns)
        if self.info.type == "DECODED":
            return np.ascontiguousarray(_decoded(fields, self.kind)).view(np.uint8)
        return _in_blocks(fields, self.kind)


def numbers(
    source: Checkpoint, info: TensorInfo, rows: slice | None = None, columns: slice | None = None
) -> Floats:
    """A part's floats as fp32 [rows, columns]."""
    raw = source.read(info.name, rows, columns)
    if info.type == "F8_E8M0":
        exponents: Floats = np.exp2(raw.astype(np.float32) - 127)
        return exponents
    if info.type not in ("BF16", "F16", "F32"):
        raise CheckpointError(f"Tensor {info.name} holds scales stored as {info.type}, not floats.")
    return widened(raw, info.type)


_NUMBERS: Mapping[str, Floats] = {"FP8": E4M3, "FP4": E2M1}


def _decoded(fields: Fields, kind: str) -> Floats:
    scales = fields.scales[:, fields.group_of]
    if kind in _NUMBERS:
        return _NUMBERS[kind][fields.codes] * scales
    if kind == "INT8":
        return fields.codes.view(np.int8).astype(np.float32) * scales
    zeros = 8 if fields.zeros is None else fields.zeros[:, fields.group_of].astype(np.float32)
    return (fields.codes.astype(np.float32) - zeros) * scales


def _in_blocks(fields: Fields, kind: str) -> Bytes:
    rows = len(fields.codes)
    group_of_block = fields.group_of[::_BLOCK]
    scales = np.ascontiguousarray(fields.scales[:, group_of_block])
    codes: Bytes = fields.codes.reshape(rows, -1, _BLOCK)
    out = np.empty((rows, len(group_of_block), FORMATS[kind].block_bytes), np.uint8)
    out[..., :4] = scales[..., None].view(np.uint8)
    if fields.zeros is not None:
        out[..., 4] = fields.zeros[:, group_of_block]
    if kind in ("INT4", "UINT4"):
        codes = codes[..., : _BLOCK // 2] | (codes[..., _BLOCK // 2 :] << np.uint8(4))
    out[..., -codes.shape[-1] :] = codes
    return out.reshape(rows, -1)
