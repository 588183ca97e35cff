"""MXFP4 as gpt-oss's safetensors have it, presented as ggml's MXFP4.

A matrix `x` [.., rows, columns] lies there as two tensors of bytes: `x_blocks` [.., rows,
columns / 32, 16], whose byte i holds the codes of columns 2i (low half) and 2i + 1, and `x_scales`
[.., rows, columns / 32]. ggml's block is the scale, then bytes that hold columns i and i + 16.
Codes and scales mean the same (OCP Microscaling Formats 1.0).
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt

_BLOCKS, _SCALES = "_blocks", "_scales"
_FORMAT = FORMATS["MXFP4"]
_CODE_BYTES = _FORMAT.block_bytes - 1


class Mxfp4Checkpoint:
    """`weights.checkpoint.Checkpoint` of another's tensors, but for pairs of blocks and scales.

    CheckpointError where such a pair does not fit together.
    """

    def __init__(self, inner: Checkpoint):
        self._inner = inner
        self.metadata: Mapping[str, Any] = inner.metadata
        self._joined = {
            name.removesuffix(_BLOCKS)
            for name in inner.tensors
            if name.endswith(_BLOCKS) and name.removesuffix(_BLOCKS) + _SCALES in inner.tensors
        }
        hidden = {name + suffix for name in self._joined for suffix in (_BLOCKS, _SCALES)}
        plain = {name: info for name, info in inner.tensors.items() if name not in hidden}
        self.tensors: Mapping[str, TensorInfo] = {
            **plain,
            **{name: self._info(name) for name in sorted(self._joined)},
        }

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        if name not in self._joined:
            return self._inner.read(name, rows, columns)
        import numpy as np

        groups = self.tensors[name].shape[-1] // _FORMAT.block_elements
        start, stop, _ = (rows or slice(None)).indices(prod(self.tensors[name].shape[:-1]))
        blocks = slice(start * groups, stop * groups)
        raw = self._inner.read(name + _BLOCKS, blocks).reshape(-1, groups, _CODE_BYTES)
        scales = self._inner.read(name + _SCALES, rows)
        out = np.empty((*scales.shape, _FORMAT.block_bytes), np.uint8)
        out[..., 0] = scales
        # Columns of the block's first half, and those 16 behind them.
        first, second = np.split(raw, 2, axis=-1)
        out[..., 1::2] = (first & 15) | (second << 4)
        out[..., 2::2] = (first >> 4) | (second & 0xF0)
        whole = out.reshape(len(scales), -1)
        if columns is None:
            return whole
        return whole[:, _FORMAT.nbytes(columns.start) : _FORMAT.nbytes(columns.stop)]

    def release(self, name: str) -> None:
        for suffix in (_BLOCKS, _SCALES) if name in self._joined else ("",):
            self._inner.release(name + suffix)

    def close(self) -> None:
        self._inner.close()

    def _info(self, name: str) -> TensorInfo:
        blocks = self._inner.tensors[name + _BLOCKS]
        scales = self._inner.tensors[name + _SCALES]
        if {blocks.type, scales.type} != {"U8"} or blocks.shape != (*scales.shape, _CODE_BYTES):
            raise CheckpointError(
                f"Tensors {blocks.name} ({blocks.type} {list(blocks.shape)}) and {scales.name} "
                f"({scales.type} {list(scales.shape)}) are no MXFP4: bytes in blocks of "
                f"{_CODE_BYTES} with a scale each. Fetch the model again."
            )
        shape = (*scales.shape[:-1], scales.shape[-1] * _FORMAT.block_elements)
        return TensorInfo(name, shape, _FORMAT.name, _FORMAT.nbytes(prod(shape)))
