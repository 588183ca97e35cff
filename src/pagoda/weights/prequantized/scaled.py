"""Matrices of one byte per weight, with scales beside them: fp8, and int8 of compressed-tensors."""

import numpy as np

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.prequantized.matrix import (
    Bytes,
    Fields,
    Floats,
    Indices,
    Layer,
    Matrix,
    numbers,
)

_KINDS = {"F8_E4M3": "FP8", "I8": "INT8"}
_ONE = ((), (1,), (1, 1))
"""Shapes of a scale that is for all."""


class Scales:
    """Scales of a whole matrix, of its rows, of groups of columns, or of blocks of both."""

    def __init__(
        self, layer: Layer, part: str, shape: tuple[int, int], block: tuple[int, int] | None
    ):
        """CheckpointError where `part` has none of these shapes; `block` is what
        quantization_config says."""
        self._info = layer.part(part)
        rows, columns = shape
        found = self._info.shape
        self._flat = len(found) < 2
        self._block_rows, self.group_size = rows, columns
        if found in ((rows,), (rows, 1)):
            self._block_rows = 1
        elif found in _ONE:
            pass
        elif block is not None and found == (-(-rows // block[0]), -(-columns // block[1])):
            self._block_rows, self.group_size = block
        elif len(found) == 2 and found[0] == rows and found[1] and columns % found[1] == 0:
            self._block_rows, self.group_size = 1, columns // found[1]
        else:
            shape_of = "rows, groups or the whole" + (f", or blocks of {block}" if block else "")
            raise layer.misshapen(self._info, f"one scale for each of {shape_of} of {list(shape)}")

    def read(self, source: Checkpoint, rows: slice) -> Floats:
        """fp32 [rows, groups]"""
        place = np.arange(rows.start, rows.stop) // self._block_rows
        first, last = int(place[0]), int(place[-1]) + 1
        if self._flat:
            scales: Floats = numbers(source, self._info).reshape(-1, 1)[first:last]
        else:
            scales = numbers(source, self._info, slice(first, last))
        of_rows: Floats = scales[place - first]
        return of_rows

    def group_of(self, columns: slice) -> Indices:
        found: Indices = np.arange(columns.start, columns.stop) // self.group_size
        return found


class ScaledMatrix(Matrix):
    """`weight` [out, in] of F8_E4M3 or I8, scales, and with I8 perhaps `weight_zero_point`."""

    def __init__(
        self,
        layer: Layer,
        scale: str,
        block: tuple[int, int] | None = None,
        symmetric: bool = True,
    ):
        shape = layer.sizes("weight")
        self._scale = scale
        self._scales = Scales(layer, scale, shape, block)
        self._zeros = None if symmetric else layer.part("weight_zero_point").name
        kind = _KINDS[layer.parts["weight"].type]
        if not symmetric:
            zeros = layer.check("weight_zero_point", layer.parts[scale].shape)
            if kind != "INT8" or zeros.type != "I8" or len(zeros.shape) != 2:
                raise CheckpointError(
                    f"Tensor {zeros.name} is stored as {zeros.type} {list(zeros.shape)}; zero "
                    "points of bytes must be one I8 for each scale of a row or group."
                )
            kind = "UINT8"
        super().__init__(layer, shape, kind, self._scales.group_size)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset(("weight", self._scale)) | (
            frozenset() if self._zeros is None else frozenset(("weight_zero_point",))
        )

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        codes = source.read(self.layer.parts["weight"].name, rows, columns)
        zeros: Bytes | None = None
        if self._zeros is not None:  # both from signed to unsigned
            codes = codes ^ np.uint8(128)
            zeros = source.read(self._zeros, rows) ^ np.uint8(128)
        return Fields(codes, self._scales.read(source, rows), zeros, self._scales.group_of(columns))
