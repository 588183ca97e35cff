"""What a model's weights take in memory: each parameter in the storage format it is held in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.planner.memory.tensor import ModelTensor
from pagoda.planner.memory.tensors import model_tensors
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS, held_as, transposed

PLAIN_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Storage formats of the types that `--dtype` names."""


# What blocks may share: an fp32 scale, of UINT4 with a byte of zero point.
_SCALE_BYTES = {"INT4": 4, "UINT4": 5, "INT8": 4, "FP8": 4, "FP4": 4}
# On a GPU the six-bit scales (and minima) of K-quants and IQ4 take a byte each.
_GPU_BLOCKS = {"Q3_K": 114, "Q4_K": 148, "Q5_K": 180, "IQ4_XS": 138}


@dataclass(frozen=True)
class HeldWeight:
    """Elements of a parameter that one device holds alike; a merged one may have several kinds."""

    tensor: ModelTensor
    storage: str
    """A storage format of `weights.formats`."""
    elements: float
    """Elements on this device; a share of a matrix that other devices hold the rest of."""
    block_bytes: float
    """Bytes of a block of the storage format, as the device's kernels keep it."""

    @property
    def nbytes(self) -> float:
        return self.elements / FORMATS[self.storage].block_elements * self.block_bytes


def held_weights(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    dtype: str,
    packed: frozenset[str],
    size: int = 1,
) -> list[HeldWeight]:
    """All weights of one device of `size`: matrices keep their bits in the storage formats of
    `packed`, or take those of the nearest; what is in none of them is expanded to `dtype`.

    Without a checkpoint (dummy loads) matrices are in the type that the spec says, or `dtype`.
    """
    plain = PLAIN_FORMATS[dtype]
    native = "BF16" in packed  # a CPU's kernels, which take plain weights too
    matrices = PLAIN_FORMATS[spec.dtype] if native else plain
    stored = _stored(spec, tensors)
    held = []
    for tensor in model_tensors(spec):
        share = _share(tensor, size)
        expanded = ("router", "conv") if native else ("router", "conv", "per_head")
        if not tensor.is_matrix or tensor.role in expanded or not packed:
            # Routers and convolutions are fp32 beside packed weights.
            storage = plain
            if tensor.role == "conv" or (tensor.role == "router" and native):
                storage = "F32"
            held.append(_as_stored(tensor, storage, tensor.elements * share))
            continue
        parts = stored.get(tensor.name)
        if not parts:
            held.append(_as_stored(tensor, matrices, tensor.elements * share))
            continue
        whole = sum(parts.values())
        for (storage, columns, group), elements in parts.items():
            held_in = held_as(storage, columns, packed)
            held_in = held_in if held_in in packed else plain
            part = tensor.elements * share * elements / whole
            if native:
                held.append(_as_stored(tensor, held_in, part))
            else:
                own = tensor.rank_shape(size, whole_experts=True)[-1] if share < 1 else columns
                held.append(HeldWeight(tensor, held_in, part, _gpu_block(held_in, own, group)))
    return held


def _as_stored(tensor: ModelTensor, storage: str, elements: float) -> HeldWeight:
    return HeldWeight(tensor, storage, elements, FORMATS[storage].block_bytes)


def _gpu_block(storage: str, columns: int, group: int) -> float:
    """Bytes of a block of such rows as `triton.products.matrix` keeps it: scales that following
    blocks share are there once, for all of a row or for eight, four or two blocks."""
    nbytes = FORMATS[storage].block_bytes
    if storage not in _SCALE_BYTES:
        return _GPU_BLOCKS.get(storage, nbytes)
    scales, size = _SCALE_BYTES[storage], FORMATS[storage].block_elements
    blocks = max(1, columns // size)
    shared = (count for count in (8, 4, 2) if blocks % count == 0 and group % (count * size) == 0)
    merged = blocks if group >= columns else next(shared, 1) if group else 1
    return nbytes - scales + scales / merged


def weight_bytes(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    dtype: str,
    packed: frozenset[str],
    size: int = 1,
) -> int:
    """Bytes of all weights on one device of `size`.

    On a CPU panels of 16 rows and sub-scales of K-quants take a few more bits than in the file
    (under 3%).
    """
    return round(sum(held.nbytes for held in held_weights(spec, tensors, dtype, packed, size)))


def _share(tensor: ModelTensor, size: int) -> float:
    """The share of a parameter's elements that one device holds; each holds the vision tower
    whole."""
    if size == 1 or tensor.role == "vision":
        return 1.0
    return prod(tensor.rank_shape(size, whole_experts=True)) / tensor.elements


def _stored(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo]
) -> Mapping[str, Mapping[tuple[str, int, int], int]]:
    """By parameter how many elements the checkpoint has in which format, with rows how long, of
    which how many columns share a scale."""
    stored: dict[str, dict[tuple[str, int, int], int]] = {}
    if not tensors:
        return stored
    for rule, info in _sources(spec, tensors):
        kind = (info.type, info.shape[-1], info.group)
        if rule.transposed and rule.pieces[0] is not None:
            kind = (transposed(info.type), rule.pieces[0].count, 0)
        of_param = stored.setdefault(rule.param, {})
        of_param[kind] = of_param.get(kind, 0) + prod(info.shape)
    return stored


def _sources(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[WeightRule, TensorInfo]]:
    for rule in spec.expanded_weights():
        for name in dict.fromkeys(rule.sources):
            if name in tensors:
                yield rule, tensors[name]
