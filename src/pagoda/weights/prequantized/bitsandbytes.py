"""bitsandbytes (arXiv 2208.07339, 2305.14314): nf4 and fp4 in blocks of a flat tensor, and int8.

A layer of 4 bits is `weight` [out * in / 2, 1], two codes in a byte, the even element in the high
half; `weight.quant_map` [16], what the codes stand for; `weight.absmax` [blocks], each block's
scale; and `weight.quant_state.bitsandbytes__nf4` (or `__fp4`), JSON in bytes, which has the shape.
With double quantization `absmax` holds bytes: places in `weight.nested_quant_map` [256], times
`weight.nested_absmax` of their own blocks, plus an offset. One of 8 bits is `weight` [out, in] of
I8 and `SCB` [out], the largest weight of each row, which 127 stands for.
"""

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.prequantized.matrix import Bytes, Fields, Floats, Layer, Made, numbers
from pagoda.weights.prequantized.scaled import ScaledMatrix
from pagoda.weights.prequantized.settings import Settings

_STATE = "weight.quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
# Of a file of which only the header is here; what the package takes if nobody asks for another.
_BLOCK = 64


@dataclass(frozen=True)
class BitsAndBytes:
    bits: int
    kind: str
    """nf4 or fp4, with 4 bits."""

    @property
    def description(self) -> str:
        return "bitsandbytes, int8" if self.bits == 8 else f"bitsandbytes, {self.kind}"

    @property
    def storage(self) -> str:
        return "INT8" if self.bits == 8 else "DECODED"

    @property
    def group_size(self) -> int:
        return -1

    def matrix(self, layer: Layer) -> Made | None:
        if "SCB" in layer.parts:
            return ByteMatrix(layer)
        state = next((name for name in layer.parts if name.startswith(_STATE)), None)
        return None if state is None else FlatMatrix(layer, state)


def from_config(settings: Settings) -> BitsAndBytes:
    four, eight = (
        settings.flag(f"load_in_{bits}bit", settings.flag(f"_load_in_{bits}bit", False))
        for bits in (4, 8)
    )
    if four == eight:
        raise settings.error("load_in_4bit", "or load_in_8bit must be true, and not both")
    kind = settings.text("bnb_4bit_quant_type", "fp4").lower()
    if kind not in _KINDS:
        raise settings.unsupported(f"bitsandbytes in {kind!r} (known are nf4, fp4 and int8)")
    return BitsAndBytes(4 if four else 8, kind)


class ByteMatrix(ScaledMatrix):
    """`weight` of I8 and `SCB`; `weight_format` says in which order rows lie, 0 as they are."""

    def __init__(self, layer: Layer):
        super().__init__(layer, "SCB")
        order = layer.parts.get("weight_format")
        if order is not None and layer.source.read(order.name).any():
            raise CheckpointError(
                f"Tensor {order.name} says that the layer's rows lie as a GPU's kernels want them; "
                "take a version of the model that current bitsandbytes has written."
            )

    @property
    def parts(self) -> frozenset[str]:
        return super().parts | ({"weight_format"} & self.layer.parts.keys())

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        found = super().fields(source, rows, columns)
        return Fields(found.codes, found.scales / np.float32(127), None, found.group_of)


class FlatMatrix:
    """Codes of 4 bits, whose blocks follow each other whatever the rows are. They are decoded: no
    storage format has such numbers."""

    def __init__(self, layer: Layer, state: str):
        said = _state(layer, layer.parts[state])
        self.layer = layer
        self._state = state
        self._block = said["blocksize"]
        self._nested = "weight.nested_absmax" in layer.parts
        self._nested_block = said.get("nested_blocksize", 1)
        self._offset = np.float32(said.get("nested_offset", 0.0))
        rows, columns = said["shape"]
        elements = layer.part("weight").nbytes * 2
        if rows * columns not in (elements, elements - 1):
            raise layer.misshapen(layer.part("weight"), f"{rows * columns} codes of 4 bits")
        layer.check("weight.quant_map", (16,))
        blocks = -(-rows * columns // self._block)
        layer.check("weight.absmax", (blocks,))
        if self._nested:
            layer.check("weight.nested_quant_map", (256,))
            layer.check("weight.nested_absmax", (-(-blocks // self._nested_block),))
        nbytes = FORMATS["DECODED"].nbytes(rows * columns)
        self.info = TensorInfo(layer.matrix_name, (rows, columns), "DECODED", nbytes)

    @property
    def parts(self) -> frozenset[str]:
        named = {"weight", "weight.absmax", "weight.quant_map", self._state}
        if self._nested:
            named |= {"weight.nested_absmax", "weight.nested_quant_map"}
        return frozenset(named)

    def read(self, source: Checkpoint, rows: slice, columns: slice) -> Bytes:
        """Whole rows are decoded, and columns of them returned."""
        width = self.info.shape[1]
        first, last = rows.start * width, rows.stop * width
        span = slice(first // 2, -(-last // 2))
        packed = self._flat(source, "weight")[span]
        codes = np.stack((packed >> 4, packed & 15), axis=-1).reshape(-1)
        codes = codes[first - 2 * span.start :][: last - first]
        block = np.arange(first, last) // self._block
        levels = numbers(source, self.layer.parts["weight.quant_map"]).reshape(-1)
        scales = self._scales(source, slice(first // self._block, -(-last // self._block)))
        decoded: Floats = levels[codes] * scales[block - first // self._block]
        whole = decoded.reshape(rows.stop - rows.start, width)
        return np.ascontiguousarray(whole[:, columns]).view(np.uint8)

    def _scales(self, source: Checkpoint, blocks: slice) -> Floats:
        """Those of some blocks, fp32 [blocks]."""
        parts = self.layer.parts
        if not self._nested:
            plain: Floats = numbers(source, parts["weight.absmax"]).reshape(-1)[blocks]
            return plain
        codes = self._flat(source, "weight.absmax")[blocks]
        levels = numbers(source, parts["weight.nested_quant_map"]).reshape(-1)
        largest = numbers(source, parts["weight.nested_absmax"]).reshape(-1)
        place = np.arange(blocks.start, blocks.start + len(codes)) // self._nested_block
        scales: Floats = levels[codes] * largest[place] + self._offset
        return scales

    def _flat(self, source: Checkpoint, part: str) -> Bytes:
        return source.read(self.layer.parts[part].name).reshape(-1)


def _state(layer: Layer, info: TensorInfo) -> dict[str, Any]:
    """What the JSON beside the codes says. Where only headers are here, as for a plan, its bytes
    are zeros: then rows are one block long."""
    raw = layer.source.read(info.name).tobytes()
    if not raw.strip(b"\0"):
        return {"blocksize": _BLOCK, "nested_blocksize": 256, "shape": _assumed(layer)}
    try:
        said = json.loads(raw)
        sizes = [*said["shape"], said["blocksize"], said.get("nested_blocksize", 1)]
        if len(sizes) == 4 and all(type(size) is int and size > 0 for size in sizes):
            said["nested_offset"] = float(said.get("nested_offset", 0.0))
            return dict(said)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise CheckpointError(
        f"Tensor {info.name} is no description of a matrix of 4 bits; the file is damaged."
    )


def _assumed(layer: Layer) -> tuple[int, int]:
    elements = layer.part("weight").nbytes * 2
    blocks = prod(layer.part("weight.absmax").shape)
    return (blocks, _BLOCK) if blocks * _BLOCK == elements else (1, elements)
