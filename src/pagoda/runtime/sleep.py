"""Weights that leave their device and come back, under the same tensors."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn


class OffloadedTensors:
    """Tensors whose memory is given back while their content waits on the host.

    Tensors and views keep their identity; their addresses change. What has noted addresses
    (captured steps) is to be made anew after `restore`.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]):
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        self._kept = []
        for tensor in storages.values():
            storage = tensor.untyped_storage()
            if not storage.resizable():
                continue  # the host's memory (`quant.host`)
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._kept.append((storage, whole.to("cpu", copy=True), tensor.device))
            storage.resize_(0)

    def restore(self) -> None:
        for storage, content, device in self._kept:
            storage.resize_(content.nbytes)
            torch.empty(0, dtype=torch.uint8, device=device).set_(storage).copy_(content)
        self._kept = []


def tensors_of(model: object) -> Iterator[torch.Tensor]:
    """All tensors, of any shape, that a model's layers hold, in lists and in objects of their own
    as well."""
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, dict):
            waiting += found.values()
        elif isinstance(found, list | tuple):
            waiting += found
        elif isinstance(found, nn.Module) or type(found).__module__.startswith("pagoda."):
            waiting += _fields(found)


def _fields(holder: object) -> Iterator[object]:
    yield from getattr(holder, "__dict__", {}).values()
    for kind in type(holder).__mro__:
        for name in getattr(kind, "__slots__", ()):
            yield getattr(holder, name, None)
