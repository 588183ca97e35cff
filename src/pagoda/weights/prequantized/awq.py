"""AWQ (arXiv 2306.00978) as AutoAWQ writes it, packed for its GEMM kernel.

A layer is `qweight` [in, out / 8] of int32 (codes of following output rows in a word, the even
ones first), `scales` [groups, out] and `qzeros` [groups, out / 8], packed alike.
"""

from dataclasses import dataclass

import numpy as np

from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.prequantized.matrix import Fields, Layer, Matrix, numbers
from pagoda.weights.prequantized.packing import Bytes, word_span, words
from pagoda.weights.prequantized.settings import Settings

_BITS = 4
_PER_WORD = 8
# Where a word holds its eight rows.
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq:
    title: str
    group_size: int

    @property
    def description(self) -> str:
        groups = "one group per row" if self.group_size < 0 else f"groups of {self.group_size}"
        return f"{self.title}, 4 bits in {groups} with zero points"

    @property
    def storage(self) -> str:
        return "UINT4"

    def matrix(self, layer: Layer) -> Matrix | None:
        return AwqMatrix(layer, self.group_size) if "qweight" in layer.parts else None


def from_config(settings: Settings) -> Awq:
    bits = settings.integer("bits", settings.integer("w_bit", _BITS))
    if bits != _BITS:
        raise settings.unsupported(f"AWQ in {bits} bits (known is 4)")
    # AutoAWQ's name for it, and GPTQModel's two.
    names = (settings.text(key).lower() for key in ("version", "checkpoint_format", "format"))
    packing = next((name for name in names if name), "gemm")
    if packing != "gemm":
        raise settings.unsupported(f"AWQ packed for {packing!r} (known is gemm)")
    if not settings.flag("zero_point", True):
        raise settings.unsupported("AWQ without zero points")
    return Awq("AWQ", settings.integer("group_size", settings.integer("q_group_size", 128)))


class AwqMatrix(Matrix):
    def __init__(self, layer: Layer, group_size: int):
        columns, packed_rows = layer.sizes("qweight")
        rows = packed_rows * _PER_WORD
        self._group_size = columns if group_size < 0 else group_size
        if self._group_size < 1 or columns % self._group_size:
            raise layer.misshapen(
                layer.part("qweight"), f"whole groups of {self._group_size} columns"
            )
        layer.check("scales", (columns // self._group_size, rows))
        layer.check("qzeros", (columns // self._group_size, packed_rows))
        super().__init__(layer, (rows, columns), "UINT4", self._group_size)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset(("qweight", "scales", "qzeros"))

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        parts = self.layer.parts
        return Fields(
            self._rows_of(source, parts["qweight"], rows, columns),
            numbers(source, parts["scales"], None, rows).T,
            self._rows_of(source, parts["qzeros"], rows, None),
            np.arange(columns.start, columns.stop) // self._group_size,
        )

    def _rows_of(
        self, source: Checkpoint, info: TensorInfo, rows: slice, columns: slice | None
    ) -> Bytes:
        span, inside = word_span(rows, _BITS)
        packed = np.ascontiguousarray(words(source, info, columns, span).T)
        codes = np.empty((len(packed), _PER_WORD, packed.shape[1]), np.uint8)
        for index, place in enumerate(_ORDER):
            codes[:, index] = (packed >> np.uint32(place * _BITS)) & np.uint32(15)
        return codes.reshape(-1, packed.shape[1])[inside]
