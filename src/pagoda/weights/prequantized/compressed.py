"""compressed-tensors, the format of llm-compressor (github.com/vllm-project/compressed-tensors).

Packed layers are `weight_packed` [out, in * bits / 32] of int32 (with 2 and 3 bits the same numbers
become codes of 4), `weight_scale` [out, groups],
`weight_zero_point` [out * bits / 32, groups] where asymmetric, `weight_g_idx` [in] where columns
are in activation order; others `weight` of E4M3 or I8, `weight_scale` and `weight_zero_point`.
NVFP4 is `weight_packed` [out, in / 2] of U8, `weight_scale` [out, in / 16] of E4M3 and
`weight_global_scale`, one fp32 number that scales are divided by.
"""

import re
from dataclasses import dataclass

import numpy as np

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.prequantized.matrix import Fields, Indices, Layer, Matrix
from pagoda.weights.prequantized.nvfp4 import COMPRESSED, Nvfp4Matrix
from pagoda.weights.prequantized.packing import (
    Bytes,
    along_rows,
    as_symmetric,
    codes_per_run,
    word_span,
    words,
)
from pagoda.weights.prequantized.scaled import ScaledMatrix, Scales
from pagoda.weights.prequantized.settings import Settings

_NVFP4 = "nvfp4-pack-quantized"
_KNOWN = (("int", 2), ("int", 3), ("int", 4), ("int", 8), ("float", 8))
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", _NVFP4)


@dataclass(frozen=True)
class Scheme:
    """How the layers of some targets are quantized."""

    targets: tuple[str, ...]
    kind: str
    """`int` or `float`."""
    bits: int
    symmetric: bool
    block: tuple[int, int] | None
    group_size: int
    """Columns that share a scale; -1: all."""
    words: str
    """What the log says of it."""


@dataclass(frozen=True)
class CompressedTensors:
    schemes: tuple[Scheme, ...]

    @property
    def description(self) -> str:
        return "compressed-tensors, " + "; ".join(scheme.words for scheme in self.schemes)

    @property
    def storage(self) -> str:
        scheme = self.schemes[0]
        if scheme.kind == "float":
            return "FP4" if scheme.bits == 4 else "FP8"
        if scheme.bits == 8:
            return "INT8"
        return "INT4" if scheme.symmetric else "UINT4"

    @property
    def group_size(self) -> int:
        return self.schemes[0].group_size

    def matrix(self, layer: Layer) -> Matrix | None:
        if "weight_packed" in layer.parts:
            scheme = self._scheme(layer.name)
            if scheme.kind == "float":
                return Nvfp4Matrix(layer, COMPRESSED)
            return PackedMatrix(layer, scheme.bits, scheme.symmetric)
        weight = layer.parts.get("weight")
        if weight is None or weight.type not in ("I8", "F8_E4M3"):
            return None
        scheme = self._scheme(layer.name)
        return ScaledMatrix(layer, "weight_scale", scheme.block, scheme.symmetric)

    def _scheme(self, layer: str) -> Scheme:
        """The one that names the layer, else the one of its class, which a name cannot tell."""
        if len(self.schemes) == 1:
            return self.schemes[0]
        for scheme in self.schemes:
            if any(_names(target, layer) for target in scheme.targets):
                return scheme
        for scheme in self.schemes:
            if "Linear" in scheme.targets:
                return scheme
        raise CheckpointError(
            f"No group of quantization_config.config_groups is for the layer {layer}, which is "
            "quantized; the file belongs to another model."
        )


def _names(target: str, layer: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), layer) is not None
    return target == layer


def from_config(settings: Settings) -> CompressedTensors:
    sparsity = settings.section("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise settings.unsupported(f"sparse weights ({sparsity.text('format')})")
    transforms = settings.section("transform_config")
    if transforms is not None and transforms.values.get("config_groups"):
        raise settings.unsupported("rotations of activations (transform_config)")
    common = settings.text("format", "pack-quantized")
    schemes = []
    for group in settings.sections("config_groups").values():
        weights = group.section("weights")
        if weights is None:
            continue
        packing = group.text("format", common)
        if packing not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise settings.unsupported(f"compressed-tensors' {packing} (known are {known})")
        schemes.append(_scheme(group.texts("targets"), weights, packing))
    if not schemes:
        raise settings.error("config_groups", "says of no weights how they are quantized")
    return CompressedTensors(tuple(schemes))


def _scheme(targets: tuple[str, ...], weights: Settings, packing: str) -> Scheme:
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    known = (("float", 4),) if packing == _NVFP4 else _KNOWN
    if (kind, bits) not in known:
        raise weights.unsupported(f"{kind} weights of {bits} bits in compressed-tensors")
    for target in targets:
        try:
            re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
        except re.error as error:
            raise weights.error("targets", f"has a bad pattern {target!r} ({error})") from error
    block = weights.pair("block_structure")
    strategy = weights.text("strategy", "tensor")
    places = {
        "group": f"groups of {weights.values.get('group_size')}",
        "tensor_group": f"groups of {weights.values.get('group_size')}",
        "block": f"blocks of {block}",
        "channel": "one group per row",
    }
    symmetric = weights.flag("symmetric", True)
    ordered = weights.values.get("actorder") in ("group", "dynamic")
    said = (
        f"{kind} of {bits} bits in {places.get(strategy, 'one group')}"
        f"{'' if symmetric else ' with zero points'}{', in activation order' if ordered else ''}"
    )
    group_size = weights.integer("group_size", -1) if strategy == "group" else -1
    if strategy == "block" and block is not None:
        group_size = block[1]
    return Scheme(targets, kind, bits, symmetric, block, group_size, said)


class PackedMatrix(Matrix):
    def __init__(self, layer: Layer, bits: int, symmetric: bool):
        self._bits, run = bits, codes_per_run(bits)
        rows, packed_columns = layer.sizes("weight_packed")
        shape = (rows, packed_columns * 32 // bits)
        if shape[1] % run:
            raise layer.misshapen(layer.part("weight_packed"), f"columns by {run}")
        self._scales = Scales(layer, "weight_scale", shape, None)
        self._zeros = None
        if not symmetric:
            self._zeros = layer.part("weight_zero_point")
            groups = shape[1] // self._scales.group_size
            packed_rows = -(-shape[0] * bits // 32) if self._zeros.type == "I32" else shape[0]
            layer.check("weight_zero_point", (packed_rows, groups))
        self._scattered = "weight_g_idx" in layer.parts
        if self._scattered:
            layer.check("weight_g_idx", (shape[1],))
        kind = f"{'' if symmetric else 'U'}INT{max(4, bits)}"
        super().__init__(layer, shape, kind, 0 if self._scattered else self._scales.group_size)

    @property
    def parts(self) -> frozenset[str]:
        parts = {"weight_packed", "weight_scale"}
        if self._zeros is not None:
            parts.add("weight_zero_point")
        if self._scattered:
            parts.add("weight_g_idx")
        return frozenset(parts)

    def fields(self, source: Checkpoint, rows: slice, columns: slice) -> Fields:
        span, inside = word_span(columns, self._bits)
        packed = words(source, self.layer.parts["weight_packed"], rows, span)
        codes = along_rows(packed, self._bits)[:, inside]
        zeros = self._zero_points(source, rows)
        if zeros is None:
            codes = as_symmetric(codes, self._bits)
        scales = self._scales.read(source, rows)
        return Fields(codes, scales, zeros, self._group_of(source, columns))

    def _zero_points(self, source: Checkpoint, rows: slice) -> Bytes | None:
        if self._zeros is None:
            return None
        if self._zeros.type == "I32":
            span, inside = word_span(rows, self._bits)
            packed = words(source, self._zeros, span)
            return along_rows(packed.T, self._bits).T[inside]
        # As older versions wrote them: signed bytes, which the middle makes unsigned.
        return source.read(self._zeros.name, rows) + np.uint8(1 << (self._bits - 1))

    def _group_of(self, source: Checkpoint, columns: slice) -> Indices:
        if not self._scattered:
            return self._scales.group_of(columns)
        name = self.layer.parts["weight_g_idx"].name
        stored = np.ascontiguousarray(source.read(name)).view(np.int32).reshape(-1)
        group_of: Indices = stored.astype(np.int64)
        if -1 in group_of:  # never filled in
            return self._scales.group_of(columns)
        groups = self.info.shape[1] // self._scales.group_size
        if group_of.min() < 0 or group_of.max() >= groups:
            raise CheckpointError(f"Tensor {name} names a group that is not there; it is damaged.")
        return group_of[columns]
