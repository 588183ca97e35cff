"""GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel write it, and AutoRound after them.

A layer is `qweight` [in * bits / 32, out] of int32 (codes of following input columns in a word),
`scales` [groups, out], `qzeros` [groups, out * bits / 32] and `g_idx` [in], each column's group.
Codes of 2 and 3 bits become the same numbers among those of 4.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.prequantized.matrix import Fields, Indices, Layer, Matrix, numbers
from pagoda.weights.prequantized.packing import (
    Bytes,
    along_rows,
    as_symmetric,
    codes_per_run,
    word_span,
    words,
)
from pagoda.weights.prequantized.settings import Settings


@dataclass(frozen=True)
class Gptq:
    """How layers are quantized, but for the exceptions of `dynamic`."""

    title: str
    bits: int
    group_size: int
    """Columns of a group; -1: all."""
    symmetric: bool
    act_order: bool
    zero_offset: int
    """What is added to a stored zero point: 1 in the first version of the format, which AutoGPTQ
    wrote and most files have."""
    dynamic: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Patterns of layer names and what is different there."""

    @property
    def description(self) -> str:
        groups = "one group per row" if self.group_size < 0 else f"groups of {self.group_size}"
        order = ", in activation order" if self.act_order else ""
        kind = "" if self.symmetric else " with zero points"
        return f"{self.title}, {self.bits} bits in {groups}{kind}{order}"

    @property
    def storage(self) -> str:
        if self.bits == 8:
            return "INT8"
        if self.act_order:
            return "DECODED"
        return "INT4" if self.symmetric else "UINT4"

    def matrix(self, layer: Layer) -> Matrix | None:
        return GptqMatrix(layer, self._of(layer.name)) if "qweight" in layer.parts else None

    def _of(self, layer: str) -> "Gptq":
        for pattern, changes in self.dynamic:
            if re.match(pattern.removeprefix("+:"), layer):
                settings = Settings(changes, f"quantization_config.dynamic.{pattern}")
                return replace(
                    self,
                    bits=_bits(settings, self.bits),
                    group_size=settings.integer("group_size", self.group_size),
                    symmetric=settings.flag("sym", self.symmetric),
                    act_order=settings.flag("desc_act", self.act_order),
                )
        return self


def from_config(settings: Settings) -> Gptq:
    packing = settings.text("checkpoint_format", settings.text("format", "gptq"))
    if packing not in ("gptq", "gptq_v2"):
        raise settings.unsupported(f"GPTQ packed for {packing!r} (known are gptq and gptq_v2)")
    if settings.flag("is_marlin_format", False):
        raise settings.unsupported("GPTQ packed for 'marlin' (known are gptq and gptq_v2)")
    if settings.text("pack_dtype", "int32") != "int32":
        raise settings.unsupported(f"GPTQ packed into {settings.text('pack_dtype')}")
    dynamic = settings.section("dynamic")
    return Gptq(
        title="GPTQ",
        bits=_bits(settings, 4),
        group_size=settings.integer("group_size", -1),
        symmetric=settings.flag("sym", True),
        act_order=settings.flag("desc_act", False),
        zero_offset=0 if packing == "gptq_v2" else 1,
        dynamic=_patterns(dynamic),
    )


def _bits(settings: Settings, default: int) -> int:
    bits = settings.integer("bits", default)
    if bits not in (2, 3, 4, 8):
        raise settings.unsupported(f"GPTQ in {bits} bits (known are 2, 3, 4 and 8)")
    return bits


def _patterns(dynamic: Settings | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Those of layers that are quantized, but otherwise; `-:` marks layers left out, whose
    tensors say so themselves."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    if dynamic is None:
        return ()
    for pattern, changes in dynamic.values.items():
        try:
            re.compile(pattern.removeprefix("+:"))
        except re.error as error:
            raise dynamic.error(pattern, f"is no regular expression ({error})") from error
        if not pattern.startswith("-:"):
            found.append((pattern, changes))
    return tuple(found)


class GptqMatrix(Matrix):
    def __init__(self, layer: Layer, method: Gptq):
        self._bits, self._offset = method.bits, method.zero_offset
        run = codes_per_run(method.bits)
        packed_rows, rows = layer.sizes("qweight")
        columns = packed_rows * 32 // method.bits
        group_size = columns if method.group_size < 0 else method.group_size
        if group_size < 1 or rows % run or columns % run:
            raise layer.misshapen(
                layer.part("qweight"), f"groups of {group_size} columns, and both sizes by {run}"
            )
        self._group_size, self._groups = group_size, -(-columns // group_size)
        layer.check("scales", (self._groups, rows))
        layer.check("qzeros", (self._groups, rows * method.bits // 32))
        if "g_idx" in layer.parts:
            layer.check("g_idx", (columns,))
        self._symmetric = method.symmetric
        kind = f"{'' if method.symmetric else 'U'}INT{max(4, method.bits)}"
        self._in_order = not (method.act_order and "g_idx" in layer.parts and self._groups > 1)
        super().__init__(layer, (rows, columns), kind, group_size if self._in_order else 0)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset(("qweight", "scales", "qzeros", "g_idx")) & self.layer.parts.keys()

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        span, inside = word_span(columns, self._bits)
        packed = words(source, self.layer.parts["qweight"], span, rows)
        codes = along_rows(packed.T, self._bits)[:, inside]
        scales = numbers(source, self.layer.parts["scales"], None, rows).T
        zeros: Bytes | None = self._zeros(source, rows)
        if self._symmetric:
            self._check_symmetric(zeros)
            zeros = None
            codes = as_symmetric(codes, self._bits)
        return Fields(codes, scales, zeros, self._group_of(source)[columns])

    def _zeros(self, source: Checkpoint, rows: slice) -> Bytes:
        span, inside = word_span(rows, self._bits)
        packed = words(source, self.layer.parts["qzeros"], None, span)
        stored = along_rows(packed, self._bits).T[inside]
        return (stored + np.uint8(self._offset)) & np.uint8((1 << self._bits) - 1)

    def _check_symmetric(self, zeros: Bytes | None) -> None:
        middle = 1 << (self._bits - 1)
        if zeros is not None and not (zeros == middle).all():
            raise CheckpointError(
                f"The zero points of {self.layer.name} are not all {middle}, as quantization_"
                "config's sym and checkpoint_format have it; one of them is wrong."
            )

    def _group_of(self, source: Checkpoint) -> Indices:
        columns = np.arange(self.info.shape[1])
        straight: Indices = columns // self._group_size
        if "g_idx" not in self.layer.parts:
            return straight
        name = self.layer.parts["g_idx"].name
        raw = np.ascontiguousarray(source.read(name))
        group_of: Indices = raw.view(np.int32).reshape(-1).astype(np.int64)
        if group_of.min() < 0 or group_of.max() >= self._groups:
            raise CheckpointError(f"Tensor {name} names a group that is not there; it is damaged.")
        if self._in_order and not np.array_equal(group_of, straight):
            raise CheckpointError(
                f"Tensor {name} scatters columns over groups, but quantization_config says that "
                "they lie in order (desc_act); one of them belongs to another model."
            )
        return group_of
