"""What a model's weights take in memory: each parameter in the storage format it is held in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from pagoda.arch.spec import ModelSpec
from pagoda.planner.tensors import ModelTensor, model_tensors
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS, held_as

PLAIN_FORMATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Storage formats of the types that `--dtype` names."""


@dataclass(frozen=True)
class HeldWeight:
    """Elements of a parameter that one device holds alike; a merged one may have several kinds."""

    tensor: ModelTensor
    storage: str
    """A storage format of `weights.formats`."""
    elements: float
    """Of this device; a share of a matrix that other devices hold the rest of."""

    @property
    def nbytes(self) -> float:
        stored = FORMATS[self.storage]
        return self.elements / stored.block_elements * stored.block_bytes


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
        if not tensor.is_matrix or tensor.role in ("router", "conv") or not packed:
            # Routers and convolutions are fp32 beside packed weights.
            storage = plain
            if tensor.role == "conv" or (tensor.role == "router" and native):
                storage = "F32"
            held.append(HeldWeight(tensor, storage, tensor.elements * share))
            continue
        parts = stored.get(tensor.name)
        if not parts:
            held.append(HeldWeight(tensor, matrices, tensor.elements * share))
            continue
        whole = sum(parts.values())
        for (storage, columns), elements in parts.items():
            held_in = held_as(storage, columns, packed)
            held_in = held_in if held_in in packed else plain
            part = tensor.elements * share * elements / whole
            held.append(HeldWeight(tensor, held_in, part))
    return held


def weight_bytes(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    dtype: str,
    packed: frozenset[str],
    size: int = 1,
) -> int:
    """Of all weights on one device of `size`.

    Panels of 16 rows and sub-scales of K-quants take a few more bits than in the file (under 3%).
    """
    return round(sum(held.nbytes for held in held_weights(spec, tensors, dtype, packed, size)))


def _share(tensor: ModelTensor, size: int) -> float:
    """Of a parameter's elements on one device; each holds the vision tower whole."""
    if size == 1 or tensor.role == "vision":
        return 1.0
    return prod(tensor.rank_shape(size, whole_experts=True)) / tensor.elements


def _stored(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo]
) -> Mapping[str, Mapping[tuple[str, int], int]]:
    """By parameter how many elements the checkpoint has in which format, with rows how long."""
    stored: dict[str, dict[tuple[str, int], int]] = {}
    if not tensors:
        return stored
    for param, info in _sources(spec, tensors):
        kind = (info.type, info.shape[-1])
        of_param = stored.setdefault(param, {})
        of_param[kind] = of_param.get(kind, 0) + prod(info.shape)
    return stored


def _sources(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, TensorInfo]]:
    for rule in spec.expanded_weights():
        for name in dict.fromkeys(rule.sources):
            if name in tensors:
                yield rule.param, tensors[name]
