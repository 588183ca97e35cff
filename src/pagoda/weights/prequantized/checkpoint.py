"""A checkpoint whose quantized layers look like one matrix each."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING

from pagoda.base.log import get_logger
from pagoda.base.machine import usable_threads
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.kv_scales import is_kv_scale
from pagoda.weights.prequantized.matrix import Layer, Made
from pagoda.weights.prequantized.select import Method
from pagoda.weights.prequantized.stack import matrix_of
from pagoda.weights.upright import SCALES

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt

log = get_logger(__name__)

# Elements that a thread takes apart at a time; temporaries are several bytes for each.
_CHUNK_ELEMENTS = 1 << 20
# Rows are cut where the words of every packing end.
_ROWS = 8

_ACTIVATIONS = "activations are rounded by the kernels, if at all, with scales of their own"
_OUTPUTS = "outputs are not rounded"
_LEFT_OUT: Mapping[str, str] = {
    "input_scale": _ACTIVATIONS,
    "input_scale_ub": _ACTIVATIONS,
    "input_global_scale": _ACTIVATIONS,
    "input_zero_point": _ACTIVATIONS,
    "activation_scale": _ACTIVATIONS,
    "output_scale": _OUTPUTS,
    "output_zero_point": _OUTPUTS,
    "q_scale": "queries are not rounded",
    "weight_shape": "the packed weights have it too",
    "weight_zero_point": "it is zero, the weights being symmetric",
}
"""Parts of quantized checkpoints that no matrix is made of, and why that is right."""

# bitsandbytes has a layer's other tensors below its weight.
_BELOW_WEIGHT = ".weight."
_OF_ALL_EXPERTS = re.compile(r"(.*\.experts\.(?:gate_up|down)_proj)((?:_\w+)?)")


class PublishedCheckpoint:
    """`weights.checkpoint.Checkpoint` of another's tensors, read as `method` says.

    A quantized layer's tensors become `<layer>.weight` in a storage format that holds just what
    they say (`weights.formats`); what holds all experts' keeps its name. Raises CheckpointError for
    tensors that do not belong together.
    """

    def __init__(self, inner: Checkpoint, method: Method):
        self._inner = inner
        self._threads = usable_threads()
        self._pool = ThreadPoolExecutor(self._threads, "unpack")
        self._matrices: dict[str, Made] = {}
        self.metadata = inner.metadata
        self.tensors = self._collect(method)

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        """As the protocol says, but matrices are put together here, on all usable threads."""
        import numpy as np

        matrix = self._matrices.get(name)
        if matrix is None:
            return self._inner.read(name, rows, columns)
        *leading, all_columns = matrix.info.shape
        rows = slice(*(rows or slice(None)).indices(prod(leading))[:2])
        columns = slice(*(columns or slice(None)).indices(all_columns)[:2])
        stored = FORMATS[matrix.info.type]
        if columns.start % stored.block_elements:
            raise ValueError(f"{name}: columns {columns.start} and on cut a block")
        width = columns.stop - columns.start
        count = rows.stop - rows.start
        out = np.empty((count, stored.nbytes(width)), np.uint8)
        step = max(_ROWS, _CHUNK_ELEMENTS // max(1, width) // _ROWS * _ROWS)

        def fill(start: int) -> None:
            stop = min(start + step, rows.stop)
            part = matrix.read(self._inner, slice(start, stop), columns)
            out[start - rows.start : stop - rows.start] = part

        list(self._pool.map(fill, range(rows.start, rows.stop, step)))
        return out

    def release(self, name: str) -> None:
        matrix = self._matrices.get(name)
        if matrix is None:
            self._inner.release(name)
            return
        for part in matrix.parts:
            self._inner.release(matrix.layer.parts[part].name)

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()

    def _collect(self, method: Method) -> Mapping[str, TensorInfo]:
        """The tensors as they look from outside, in the order of the file."""
        layers: defaultdict[str, dict[str, TensorInfo]] = defaultdict(dict)
        for name, info in self._inner.tensors.items():
            layer, part = _layer_and_part(name)
            layers[layer][part] = info
        made = {
            name: matrix_of(method, Layer(name, parts, self._inner))
            for name, parts in layers.items()
        }
        tensors: dict[str, TensorInfo] = {}
        left_out: Counter[str] = Counter()
        for name, info in self._inner.tensors.items():
            layer, part = _layer_and_part(name)
            matrix = made[layer]
            if matrix is not None and part in matrix.parts:
                tensors[matrix.info.name] = matrix.info
                self._matrices[matrix.info.name] = matrix
            elif part in _LEFT_OUT and not is_kv_scale(name):
                left_out[part] += 1
            else:
                tensors[name] = info
        for part, count in left_out.items():
            log.info("%d tensors %s are not used: %s.", count, part, _LEFT_OUT[part])
        return tensors


def _layer_and_part(name: str) -> tuple[str, str]:
    """`a.proj.weight_scale` is the `weight_scale` of `a.proj`; and of all experts' tensors, whose
    names have no `.weight`, `experts.down_proj_scale_inv` the `weight_scale_inv` of
    `experts.down_proj`."""
    layer, below, part = name.partition(_BELOW_WEIGHT)
    if below:
        return layer, f"weight.{part}"
    of_all = _OF_ALL_EXPERTS.fullmatch(name)
    if of_all is None:
        layer, _, part = name.rpartition(".")
        return layer, part
    layer, suffix = of_all.groups()
    if suffix in ("", *SCALES):
        return layer, "weight" + suffix.removeprefix("_weight")
    return layer, suffix.removeprefix("_")
