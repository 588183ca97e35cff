"""All experts' matrices in one tensor: parts of a quantized layer have a first dimension more."""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.prequantized.matrix import Bytes, Layer, Made

if TYPE_CHECKING:
    from pagoda.weights.prequantized.select import Method

_CODES = ("weight", "weight_packed", "qweight")
"""What a layer's codes are called, in one format or another."""


def matrix_of(method: "Method", layer: Layer) -> Made | None:
    """What `method` makes of a layer, or of one that stands for as many as there are experts."""
    codes = next((layer.parts[name] for name in _CODES if name in layer.parts), None)
    if codes is None or len(codes.shape) != 3:
        return method.matrix(layer)
    count = codes.shape[0]
    parts = {name: _of_one(info, count) for name, info in layer.parts.items()}
    each = method.matrix(Layer(layer.name, parts, layer.source, count))
    return None if each is None else StackedMatrix(layer, each, count)


class StackedMatrix:
    """As many matrices as there are experts, [experts, out_features, in_features]. CheckpointError
    for a part that is neither of each nor one number for all."""

    def __init__(self, layer: Layer, each: Made, count: int):
        for name in each.parts:
            info = layer.parts[name]
            if info.shape == each.layer.parts[name].shape and prod(info.shape) != 1:
                raise layer.misshapen(info, f"something of each of {count} experts")
        self.layer = layer
        self.parts = each.parts
        self._each = each
        one = each.info
        self.info = TensorInfo(
            one.name, (count, *one.shape), one.type, count * one.nbytes, one.group
        )

    def read(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        """As of a matrix; the rows of all experts lie behind each other."""
        height = self.info.shape[1]
        read = []
        for expert in range(rows.start // height, -(-rows.stop // height)):
            first = expert * height
            part = slice(max(rows.start - first, 0), min(rows.stop - first, height))
            one = _Expert(source, self.layer, self._each.layer, expert)
            read.append(self._each.read(one, part, columns))
        return np.concatenate(read)


class _Expert:
    """`weights.checkpoint.Checkpoint` of one expert's parts."""

    def __init__(self, source: Checkpoint, whole: Layer, one: Layer, expert: int):
        self._source, self._expert = source, expert
        self._whole = {info.name: info for info in whole.parts.values()}
        self.tensors: Mapping[str, TensorInfo] = {info.name: info for info in one.parts.values()}
        self.metadata: Mapping[str, Any] = {}

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Bytes:
        shape = self.tensors[name].shape
        if shape == self._whole[name].shape:  # of all experts
            return self._source.read(name, rows, columns)
        expert = slice(self._expert, self._expert + 1)
        if not shape:
            return self._source.read(name, None, expert)
        if len(shape) == 1:
            return self._source.read(name, expert, rows or columns)
        height = prod(shape[:-1])
        start, stop, _ = (rows or slice(None)).indices(height)
        first = self._expert * height
        return self._source.read(name, slice(first + start, first + stop), columns)

    def release(self, name: str) -> None:
        self._source.release(name)

    def close(self) -> None:
        pass


def _of_one(info: TensorInfo, count: int) -> TensorInfo:
    """A part as one expert has it; what is one number is of all."""
    if info.shape[:1] != (count,) or (len(info.shape) < 3 and prod(info.shape) == 1):
        return info
    return TensorInfo(info.name, info.shape[1:], info.type, info.nbytes // count)
