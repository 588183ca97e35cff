"""Random weights for a model of which only the configuration is at hand."""

import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.planner.memory.assumed import Dummy
from pagoda.quant.plain import STORAGES
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS

_NUMBERS = (1 << 23) - 15
"""Random ones, a prime, so that no two rows are alike; a tensor repeats them."""
_SCALE = 0.02  # the usual initializer_range; keeps activations finite in fp16
# What a scale is for codes that are all equally frequent: weights are as large on average as plain
# ones, whose rms is _SCALE / sqrt(3).
_SCALES = {"INT4": 0.0025, "UINT4": 0.0025, "INT8": 0.000156, "FP8": 0.0137, "FP4": 0.0039}
_MIDDLE = 8  # zero point of UINT4
# Of E4M3: any sign and mantissa, and the exponents of 1/8 to 1.
_FP8_KEPT, _FP8_SET = 0x9F, 0x20
_MXFP4_EXPONENT = 118  # of 2^-9
_ONE_AS_E4M3 = 0x38
# Neighbouring groups differ, or layers would take many for one.
_WIDER = 1.25


class DummyCheckpoint:
    """A checkpoint of the given names and shapes, stored in `dtype` or as `dummy` says; a tensor's
    values depend on its name alone.

    Norms are ones, all else is uniform within +-0.02 or has any codes; a rank's slice is a slice of
    the same whole.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, dummy: Dummy):
        (plain,) = (name for name, kind in STORAGES.items() if kind is dtype)
        self._group = dummy.group
        tensors = {}
        for name, shape in shapes.items():
            told = dummy.tensors.get(name)
            quantized = told is not None and told.type not in STORAGES
            storage = told.type if told is not None and quantized else plain
            nbytes = FORMATS[storage].nbytes(int(np.prod(shape)))
            tensors[name] = TensorInfo(name, shape, storage, nbytes)
        self.tensors: Mapping[str, TensorInfo] = tensors
        self.metadata: Mapping[str, Any] = {}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> npt.NDArray[np.uint8]:
        info = self.tensors[name]
        shape, dtype = info.shape, STORAGES.get(info.type, torch.float32)
        if len(shape) == 1 and not name.endswith(".bias"):
            return _stored(np.ones((1, *shape), np.float32), dtype)
        width, count = shape[-1], int(np.prod(shape[:-1]))
        start, stop, _ = (rows or slice(None)).indices(count)
        seed = zlib.crc32(name.encode())
        stored = FORMATS[info.type]
        if stored.block_elements > 1:
            made = _blocks(info.type, self._group, seed, (start, stop), width)
        else:
            made = _repeated(_numbers(dtype), seed, (start, stop), width)
        first, last, _ = (columns or slice(None)).indices(width)
        return np.ascontiguousarray(made[:, stored.nbytes(first) : stored.nbytes(last)])

    def release(self, name: str) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def _stored(values: npt.NDArray[np.float32], dtype: torch.dtype) -> npt.NDArray[np.uint8]:
    stored: npt.NDArray[np.uint8] = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
    return stored


@cache
def _numbers(dtype: torch.dtype) -> npt.NDArray[np.uint8]:
    """[numbers, bytes of one]: random ones within +-0.02."""
    numbers = _random().random((_NUMBERS, 1), np.float32)
    return _stored((numbers - np.float32(0.5)) * np.float32(2 * _SCALE), dtype)


@cache
def _codes() -> npt.NDArray[np.uint8]:
    return _random().integers(0, 256, (_NUMBERS, 1), np.uint8)


def _random() -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(0))


def _repeated(
    numbers: npt.NDArray[np.uint8], seed: int, rows: tuple[int, int], width: int
) -> npt.NDArray[np.uint8]:
    """[rows, bytes of `width` numbers], those from rows[0] on, of what repeats `numbers`, from a
    place on that `seed` says: a copy takes a tenth of the time of new ones."""
    start, stop = rows
    made = np.empty(((stop - start) * width, numbers.shape[1]), np.uint8)
    at, done = (seed + start * width) % len(numbers), 0
    while done < len(made):
        part = min(len(numbers) - at, len(made) - done)
        made[done : done + part] = numbers[at : at + part]
        done, at = done + part, 0
    return made.reshape(stop - start, -1)


def _blocks(
    storage: str, group: int, seed: int, span: tuple[int, int], columns: int
) -> npt.NDArray[np.uint8]:
    """[rows, bytes of one], of rows span[0] to span[1] in a quantized storage format."""
    stored, rows = FORMATS[storage], span[1] - span[0]
    size = (rows, columns // stored.block_elements, stored.block_bytes)
    raw = _repeated(_codes(), seed, span, stored.nbytes(columns)).reshape(size)
    block = np.arange(size[1])
    if storage == "MXFP4":
        raw[..., 0] = _MXFP4_EXPONENT + block % 3
        return raw.reshape(rows, -1)
    group_of = block * stored.block_elements // (group or columns)
    scales = np.where(group_of % 2, _WIDER, 1.0).astype(np.float32) * np.float32(_SCALES[storage])
    raw[..., :4] = scales[:, None].view(np.uint8)
    if storage == "UINT4":
        raw[..., 4] = _MIDDLE
    if storage == "FP4":
        raw[..., 4:6] = _ONE_AS_E4M3
    if storage == "FP8":
        codes = raw[..., 4:]
        codes &= _FP8_KEPT
        codes |= _FP8_SET
    return raw.reshape(rows, -1)
