"""A matrix in a GPU's memory, quantized as its checkpoint has it (`layouts`); without Triton."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch

from pagoda.base.errors import CheckpointError
from pagoda.kernels.triton.products.fields import FIELDS, Fields
from pagoda.kernels.triton.products.layouts import STORAGES, layout_of
from pagoda.weights.formats import FORMATS

Tensor = torch.Tensor

_PLAIN = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_SCALES = {
    "half": torch.float16,
    "single": torch.float32,
    "power": torch.uint8,
    "byte": torch.int8,
    "nibble": torch.uint8,
    "e4m3": torch.uint8,
}
_ELEMENTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Codes taken apart at a time: each is several bytes of temporaries.
_CHUNK_CODES = 1 << 24


class GpuMatrix:
    """[rows, columns] in one of `layouts.STORAGES`, or plain in BF16, F16 or F32."""

    def __init__(self, storage: str, rows: int, columns: int, device: str) -> None:
        """Room for it, not touched yet."""
        self.rows, self.columns, self.storage = rows, columns, storage
        self.layout = layout_of(storage)
        self.high = self.scales = self.minima = self.supers = None
        if storage not in STORAGES:
            self.low = torch.empty(rows, columns, dtype=_PLAIN[storage], device=device)
            return
        layout = self.layout
        if columns % FORMATS[storage].block_elements:
            raise ValueError(f"{columns} columns are no whole {storage} blocks")
        planes = [
            torch.empty(rows, columns * bits // 8, dtype=torch.uint8, device=device)
            for bits in layout.planes
        ]
        self.low, *high = (
            plane.view(_ELEMENTS[layout.element_bytes(i)]) for i, plane in enumerate(planes)
        )
        self.high = high[0] if high else None
        groups = columns // layout.group
        kind = _SCALES[layout.scale]
        self.scales = torch.empty(groups, rows, dtype=kind, device=device)
        if layout.minimum in ("added", "zero") or (layout.minimum and layout.scale == "byte"):
            kind = torch.uint8 if layout.minimum == "zero" else kind
            self.minima = torch.empty(groups, rows, dtype=kind, device=device)
        if layout.scale in ("byte", "nibble"):
            size = (2 if layout.minimum else 1, columns // 256, rows)
            self.supers = torch.empty(size, dtype=torch.float16, device=device)
        elif layout.scale == "e4m3":
            self.supers = torch.empty(1, 1, rows, dtype=torch.float32, device=device)

    @classmethod
    def of(cls, weight: Tensor) -> "GpuMatrix":
        """Plain weights [rows, columns], where they are."""
        matrix = cls.__new__(cls)
        matrix.rows, matrix.columns, matrix.storage = *weight.shape, "plain"
        matrix.layout = layout_of("plain")
        matrix.low = weight
        matrix.high = matrix.scales = matrix.minima = matrix.supers = None
        return matrix

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """What kernels take, each [rows, its columns]: planes of codes (or the weights), scales,
        minima, blocks' scales."""
        return self.low, self.high, self.scales, self.minima, self.supers

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors if tensor is not None)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "GpuMatrix":
        """The same matrix, on what `change` makes of each tensor of any shape."""
        mapped = copy(self)
        mapped.low = change(self.low)
        mapped.high, mapped.scales, mapped.minima, mapped.supers = (
            None if tensor is None else change(tensor) for tensor in self.tensors[1:]
        )
        return mapped

    def load(self, first_row: int, raw: Tensor) -> None:
        """Take uint8 [rows, bytes per row] of the storage format, on any device, as rows from
        `first_row` on. CheckpointError where fp16 cannot hold plain weights."""
        step = max(1, _CHUNK_CODES // max(1, self.columns))
        for start in range(0, len(raw), step):
            chunk = raw[start : start + step].to(self.low.device)
            rows = slice(first_row + start, first_row + start + len(chunk))
            if self.storage in STORAGES:
                self._put(rows, chunk)
            else:
                self._put_plain(rows, chunk)

    def settle(self) -> None:
        """Called when all rows are loaded: groups that share their scales become one."""
        layout, scales = self.layout, self.scales
        if scales is None or layout.scale not in ("half", "single", "power") or not len(scales):
            return
        for merged in sorted({len(scales), 8, 4, 2}, reverse=True):
            if len(scales) % merged == 0 and all(
                _alike(tensor, merged) for tensor in (scales, self.minima) if tensor is not None
            ):
                self.scales = scales[::merged].contiguous()
                self.minima = None if self.minima is None else self.minima[::merged].contiguous()
                self.layout = replace(layout, group=layout.group * merged)
                return

    def _put_plain(self, rows: slice, raw: Tensor) -> None:
        weights = raw.contiguous().view(self.low.dtype)
        if self.low.dtype == torch.float16 and not weights.isfinite().all():
            raise CheckpointError(
                "The checkpoint has weights beyond 65504, which float16 cannot hold; pass --dtype "
                "float32, or bfloat16 where the device has it."
            )
        self.low[rows] = weights

    def _put(self, rows: slice, raw: Tensor) -> None:
        found = FIELDS[self.storage](raw.reshape(-1, FORMATS[self.storage].block_bytes))
        codes = found.codes.reshape(len(raw), -1)
        layout, shift = self.layout, 0
        apart = codes.view(len(raw), -1, layout.codes_each, 4).transpose(2, 3)
        for plane, bits in zip((self.low, self.high), layout.planes, strict=False):
            assert plane is not None
            plane[rows] = _packed((apart >> shift) & ((1 << bits) - 1), bits).view(plane.dtype)
            shift += bits
        self._put_scales(rows, found, len(raw))

    def _put_scales(self, rows: slice, found: Fields, count: int) -> None:
        assert self.scales is not None
        self.scales[:, rows] = found.scales.reshape(count, -1).t()
        if self.minima is not None:
            assert found.minima is not None
            self.minima[:, rows] = found.minima.reshape(count, -1).t()
        if self.supers is not None:
            assert found.supers is not None
            kinds, runs, _ = self.supers.shape
            each = found.supers.view(count, -1, kinds)
            self.supers[:, :, rows] = each[:, :runs].permute(2, 1, 0)


def _alike(scales: Tensor, merged: int) -> bool:
    """Whether each `merged` groups that follow each other have one scale; NaN is like nothing."""
    grouped = scales.unflatten(0, (-1, merged))
    return bool((grouped == grouped[:, :1]).all())


def _packed(codes: Tensor, bits: int) -> Tensor:
    """uint8 [rows, ...] of `bits` each as bytes [rows, bytes], the first code lowest."""
    apart = codes.reshape(len(codes), -1, 8 // bits)
    out = apart[..., 0].clone()
    for place in range(1, 8 // bits):
        out |= apart[..., place] << (bits * place)
    return out
