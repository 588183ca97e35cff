"""Headers as a checkpoint would have them, where only its config.json is at hand."""

from collections.abc import Iterator, Mapping
from math import prod

from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.planner.tensors import ModelTensor, model_tensors
from pagoda.planner.weights import PLAIN_FORMATS
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS


def assumed_tensors(spec: ModelSpec, storage: str | None) -> Mapping[str, TensorInfo]:
    """Every source of the weight rules, in `spec.dtype` or, where `storage` (a format of
    `weights.formats`) is given, quantized as such checkpoints are: linear layers and experts, but
    no tables, heads, routers and vision towers; of MXFP4 the experts alone.

    Sources of a merged parameter share its rows equally: sums are right, single shapes may not be.
    """
    held = {tensor.name: tensor for tensor in model_tensors(spec)}
    infos: dict[str, TensorInfo] = {}
    for rule in spec.expanded_weights():
        for info in _sources(rule, held[rule.param], spec, storage):
            infos[info.name] = info
    return infos


def _sources(
    rule: WeightRule, tensor: ModelTensor, spec: ModelSpec, storage: str | None
) -> Iterator[TensorInfo]:
    names = list(dict.fromkeys(rule.sources))
    kind = PLAIN_FORMATS[spec.dtype]
    roles = ("experts",) if storage == "MXFP4" else ("linear", "experts")
    columns = tensor.shape[-1]
    if storage is not None and tensor.role in roles and tensor.is_matrix:
        kind = storage if columns % FORMATS[storage].block_elements == 0 else kind
    if len(tensor.shape) == 1:
        columns = 1
    rows = prod(tensor.shape) // columns
    for index, name in enumerate(names):
        count = rows * (index + 1) // len(names) - rows * index // len(names)
        shape = (count, columns) if tensor.is_matrix else (count * columns,)
        yield TensorInfo(name, shape, kind, FORMATS[kind].nbytes(prod(shape)))
