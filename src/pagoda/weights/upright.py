"""Experts whose matrices lie on their side in a checkpoint, presented upright.

Some families publish what all experts have as [experts, columns, rows] (Qwen3-VL, Llama 4, gpt-oss
in bf16), others as [experts, rows, columns]. Which of the two a file has, the shapes of gate_up
and down tell together: gate_up has two rows for each column of down, and its columns are down's
rows. Both cannot hold of both readings.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt

_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"
SCALES = ("_scale_inv", "_scale", "_weight_scale")
"""What the names of their scales end in, behind the matrices' own."""
# Rows of the file turned at a time: with 32 a matrix of bf16 takes a fifth of the time that it
# takes at once, one of fp8 a third, for what is written stays in the cache.
_STRIP = 32


class UprightCheckpoint:
    """`weights.checkpoint.Checkpoint` of another's tensors, where experts and their scales are
    [experts, rows, columns]."""

    def __init__(self, inner: Checkpoint):
        self._inner = inner
        self.metadata: Mapping[str, Any] = inner.metadata
        self._turned = frozenset(_lying(inner.tensors))
        self.tensors: Mapping[str, TensorInfo] = {
            name: _upright(info) if name in self._turned else info
            for name, info in inner.tensors.items()
        }

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        """As the protocol says; of a matrix on its side a copy."""
        if name not in self._turned:
            return self._inner.read(name, rows, columns)
        import numpy as np

        count, height, width = self.tensors[name].shape
        start, stop, _ = (rows or slice(None)).indices(count * height)
        left, right, _ = (columns or slice(None)).indices(width)
        size = FORMATS[self.tensors[name].type].block_bytes
        out = np.empty((max(0, stop - start), right - left), f"u{size}")
        done = 0
        while start < stop:
            expert, first = divmod(start, height)
            last = min(height, first + stop - start)
            side = slice(expert * width + left, expert * width + right)
            lying = self._inner.read(name, side, slice(first, last))
            target = out[done : done + last - first]
            for strip in range(0, right - left, _STRIP):
                part = lying[strip : strip + _STRIP]
                target[:, strip : strip + _STRIP] = part.view(out.dtype).T
            done += last - first
            start += last - first
        return out.view(np.uint8)

    def release(self, name: str) -> None:
        self._inner.release(name)

    def close(self) -> None:
        self._inner.close()


def _lying(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Names of what lies on its side."""
    found = []
    for name, gate_up in tensors.items():
        down = tensors.get(name.replace(_GATE_UP, _DOWN))
        if not name.endswith(_GATE_UP) or down is None or not _is_lying(gate_up, down):
            continue
        for info in (gate_up, down):
            found.append(info.name)
            scales = (tensors.get(info.name + suffix) for suffix in SCALES)
            found += [scale.name for scale in scales if scale and _turns_with(scale, info)]
    return found


def _is_lying(gate_up: TensorInfo, down: TensorInfo) -> bool:
    """Bytes hold two codes of following columns each, as ModelOpt's NVFP4 has them."""
    pair = (gate_up, down)
    if any(len(x.shape) != 3 or FORMATS[x.type].block_elements > 1 for x in pair):
        return False  # blocks cannot be turned
    each = 2 if gate_up.type == "U8" else 1
    _, hidden, both = gate_up.shape
    return down.shape[1:] == (both // 2 // each, hidden * each) and both % (2 * each) == 0


def _turns_with(scale: TensorInfo, lying: TensorInfo) -> bool:
    """FBGEMM has those of rows upright beside a matrix on its side."""
    return len(scale.shape) == 3 and scale.shape[1:] != (lying.shape[2], 1)


def _upright(info: TensorInfo) -> TensorInfo:
    count, columns, rows = info.shape
    return replace(info, shape=(count, rows, columns))
