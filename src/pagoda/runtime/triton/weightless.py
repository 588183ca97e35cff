"""A model's layers without memory: what they launch on a GPU is found out without computing it."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from pagoda.kernels.attention.backend import AttentionBackend, OwnAttention, StoresAsOwn
from pagoda.layers.context import Parallel
from pagoda.layers.loading import WeightedLayer
from pagoda.models.base import CausalLM, Model
from pagoda.runtime.sleep import tensors_of

Tensor = torch.Tensor

_ALIGNMENT = 16
"""Bytes. Triton compiles other kernels for places in memory that are no multiples of it."""


def weightless(model: Model) -> Model:
    """The model on tensors of the device `meta`, each aligned as the one that it stands for.

    Of layers that are alike the first alone is there. What ranks exchange is not exchanged, weights
    in the host's memory count as the device's, and attention of other libraries, which compile by
    themselves, attends to nothing.
    """
    known: dict[int, Any] = {id(tensor): _without_memory(tensor) for tensor in tensors_of(model)}
    parallel = model.context.parallel
    if parallel.size > 1:
        known[id(parallel)] = Parallel(parallel.rank, parallel.size, lambda x: x, _side_by_side)
    for backend in model.context.attention.by_name.values():
        known[id(backend)] = _alone(backend)
    for layer in model.modules():
        if isinstance(layer, WeightedLayer):
            known[id(layer.host)] = None
    copied = deepcopy(model, known)
    copied.context.rotary.grow_on("meta")
    if isinstance(copied, CausalLM):
        kinds = {_kind(layer): layer for layer in reversed(copied.layers)}
        copied.layers = nn.ModuleList(reversed(kinds.values()))
    return copied


def _kind(layer: nn.Module) -> object:
    """Layers with the same launch the same."""
    specs = [getattr(part, "spec", None) for part in layer.modules()]
    return repr(specs), *((*x.shape, *x.stride(), x.dtype) for x in tensors_of(layer))


class _Unattended(StoresAsOwn):
    """Stores as a backend does whose kernels are not Triton's."""

    def __init__(self, own: OwnAttention):
        self.own, self.name, self.plan = own, own.name, own.plan

    def attend(self, q: Tensor, *_: object, **__: object) -> Tensor:
        return torch.empty_like(q)


def _alone(backend: AttentionBackend) -> AttentionBackend:
    return _Unattended(backend.own) if isinstance(backend, StoresAsOwn) else backend


def _without_memory(tensor: Tensor) -> Tensor:
    offset = tensor.data_ptr() % _ALIGNMENT // tensor.itemsize
    size = offset + sum(
        (count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    whole = torch.empty(max(0, size + 1), dtype=tensor.dtype, device="meta")
    return whole.as_strided(tensor.shape, tensor.stride(), offset)


def _side_by_side(part: Tensor, columns: int) -> Tensor:
    return part.new_empty((len(part), columns))
