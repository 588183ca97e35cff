"""Headers as a checkpoint would have them, where only its config.json is at hand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.planner.memory.tensor import ModelTensor
from pagoda.planner.memory.tensors import model_tensors
from pagoda.planner.memory.weights import PLAIN_FORMATS
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.prequantized.select import left_out, nominal_group, nominal_storage


@dataclass(frozen=True)
class Dummy:
    """What stands for a checkpoint's quantized tensors where its weights are random."""

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    """The tensors of all sources; empty where nothing is quantized."""
    group: int = 0
    """Columns that share a scale; 0: all of a row."""


def dummy_of(spec: ModelSpec, config: Mapping[str, Any] | None) -> Dummy:
    """As config.json says; raises as `method_of`."""
    if nominal_storage(config) is None:
        return Dummy()
    return Dummy(config_tensors(spec, config), max(0, nominal_group(config)))


def config_tensors(spec: ModelSpec, config: Mapping[str, Any] | None) -> Mapping[str, TensorInfo]:
    """`assumed_tensors` as config.json says; raises as `method_of`."""
    storage, group_size = nominal_storage(config), nominal_group(config)
    return assumed_tensors(spec, storage, group_size, left_out(config))


def assumed_tensors(
    spec: ModelSpec,
    storage: str | None,
    group_size: int = 0,
    left_out: Callable[[str], bool] = lambda layer: False,
) -> Mapping[str, TensorInfo]:
    """Every source of the weight rules, in `spec.dtype` or, where `storage` (a format of
    `weights.formats`) is given, quantized as such checkpoints are: linear layers and experts, but
    no tables, heads, routers, vision towers and layers that are `left_out`; of MXFP4 the experts
    alone. `group_size` columns share a scale; -1: all of a row, 0: those of a block.

    Sources of a merged parameter share its rows equally: sums are right, single shapes may not be.
    """
    held = {tensor.name: tensor for tensor in model_tensors(spec)}
    infos: dict[str, TensorInfo] = {}
    for rule in spec.expanded_weights():
        for info in _sources(rule, held[rule.param], spec, storage, left_out):
            shared = info.shape[-1] if group_size < 0 else group_size
            infos[info.name] = replace(info, group=shared) if info.type == storage else info
    return infos


def _sources(
    rule: WeightRule,
    tensor: ModelTensor,
    spec: ModelSpec,
    storage: str | None,
    left_out: Callable[[str], bool],
) -> Iterator[TensorInfo]:
    names = list(dict.fromkeys(rule.sources))
    plain = PLAIN_FORMATS[spec.dtype]
    roles = ("experts",) if storage == "MXFP4" else ("linear", "experts", "per_head")
    columns = tensor.shape[-1]
    quantized = plain
    if storage is not None and tensor.role in roles and tensor.is_matrix:
        quantized = storage if columns % FORMATS[storage].block_elements == 0 else plain
    if len(tensor.shape) == 1:
        columns = 1
    rows = prod(tensor.shape) // columns
    for index, name in enumerate(names):
        count = rows * (index + 1) // len(names) - rows * index // len(names)
        kind = plain if left_out(name.removesuffix(".weight")) else quantized
        shape = (count, columns) if tensor.is_matrix else (count * columns,)
        yield TensorInfo(name, shape, kind, FORMATS[kind].nbytes(prod(shape)))
