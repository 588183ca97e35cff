"""NVFP4: numbers of E2M1, two in a byte, with a scale of E4M3 for 16 columns and one of fp32 for
the whole matrix. ModelOpt multiplies with the latter, compressed-tensors divides by it.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.formats import FORMATS
from pagoda.weights.prequantized.matrix import E4M3, Bytes, Fields, Layer, Matrix, numbers

_GROUP, _BLOCK = 16, 32


@dataclass(frozen=True)
class Names:
    """What the tensors of a layer are called."""

    codes: str
    whole: str
    """The scale of the whole matrix."""
    divides: bool
    """Whether numbers are divided by it."""
    scale: str = "weight_scale"


MODELOPT = Names("weight", "weight_scale_2", divides=False)
COMPRESSED = Names("weight_packed", "weight_global_scale", divides=True)


class Nvfp4Matrix(Matrix):
    """`codes` [out, in / 2] of U8, the even column in the low half; `scale` [out, in / 16] of
    F8_E4M3; `whole`, one number."""

    def __init__(self, layer: Layer, names: Names):
        rows, packed_columns = layer.sizes(names.codes)
        columns = packed_columns * 2
        for part, kind in ((names.codes, "U8"), (names.scale, "F8_E4M3")):
            info = layer.part(part)
            if info.type != kind:
                raise CheckpointError(
                    f"Tensor {info.name} is stored as {info.type}, but NVFP4 has {kind} there; the "
                    "checkpoint is damaged or packed in another way."
                )
        if columns % _GROUP:
            raise layer.misshapen(layer.part(names.codes), f"whole groups of {_GROUP} columns")
        layer.check(names.scale, (rows, columns // _GROUP))
        whole = layer.part(names.whole)
        if prod(whole.shape) != 1:
            raise layer.misshapen(whole, "one scale of the whole matrix")
        self._names = names
        # What a row's columns share is the scale of the whole; the others lie with the codes.
        super().__init__(layer, (rows, columns), "FP4", columns)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset((self._names.codes, self._names.scale, self._names.whole))

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        name = self.layer.parts[self._names.scale].name
        scales = E4M3[source.read(name, rows)] * self._whole(source)
        group_of = np.arange(columns.start, columns.stop) // _GROUP
        return Fields(self._codes(source, rows, columns), scales, None, group_of)

    def read(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        if self.info.type == "DECODED":
            return super().read(source, rows, columns)
        codes = self._codes(source, rows, columns).reshape(rows.stop - rows.start, -1, _BLOCK)
        groups = slice(columns.start // _GROUP, columns.stop // _GROUP)
        scales = source.read(self.layer.parts[self._names.scale].name, rows, groups)
        out = np.empty((*codes.shape[:2], FORMATS["FP4"].block_bytes), np.uint8)
        out[..., :4] = np.array([self._whole(source)]).view(np.uint8)
        out[..., 4:6] = scales.reshape(*codes.shape[:2], 2)
        out[..., 6:] = codes[..., : _BLOCK // 2] | (codes[..., _BLOCK // 2 :] << np.uint8(4))
        return out.reshape(len(codes), -1)

    def _codes(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        """[rows, columns]"""
        span = slice(columns.start // 2, -(-columns.stop // 2))
        packed = source.read(self.layer.parts[self._names.codes].name, rows, span)
        codes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)
        first = columns.start - 2 * span.start
        return codes[:, first : first + columns.stop - columns.start]

    def _whole(self, source: Checkpoint) -> np.float32:
        """What the scales of groups are multiplied with."""
        info = self.layer.parts[self._names.whole]
        whole = np.float32(numbers(source, info).item())
        if not self._names.divides:
            return whole
        if not whole > 0:
            raise CheckpointError(
                f"Tensor {info.name} is {whole}, and weights are divided by it; it is damaged."
            )
        return np.float32(1) / whole
