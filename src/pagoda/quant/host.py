"""Weights that stay in the host's memory, where a device's is too small for all."""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import torch

Tensor = torch.Tensor

HostMemory = Callable[[int], tuple[Tensor, Tensor]]
"""So many bytes of the host's memory that stay where they are: uint8, as the host sees them and as
the device's kernels do."""

# Of what kernels load at once.
_ALIGNMENT = 16


class TensorHolder(Protocol):
    """Weights in some format."""

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same weights, on what `change` makes of each tensor; they must be loaded."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


_M = TypeVar("_M", bound=TensorHolder)


class HostWeights:
    """A device, and which weights are not in its memory but in the host's.

    Kernels can read them there, at the speed of the bus. What reads all of them is better off with
    a copy on the device: one piece of memory there is for the weights that are needed next. Copies
    and work are in one queue, so that none overtakes the other, in a captured step too.
    """

    def __init__(self, params: frozenset[str], device: str, memory: HostMemory):
        """`params` names them as weight rules do."""
        self.params, self.device = params, device
        self._memory = memory
        self._kept: dict[int, Tensor] = {}
        """As the host sees them, by where the device does."""
        self._staging = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._kept.values())

    @property
    def staging_bytes(self) -> int:
        return self._staging.nbytes

    def keep(self, weights: _M) -> _M:
        """Weights that are on the device, from now on in the host's memory."""
        return weights.map_tensors(self._keep)

    def reserve(self, nbytes: int) -> None:
        """Make room on the device for copies of so many bytes of weights at once."""
        self._staging = torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def fetched(self, *weights: _M) -> list[_M]:
        """Copies on the device, until the next are fetched."""
        used = 0

        def fetch(tensor: Tensor) -> Tensor:
            nonlocal used
            here = self._staging[used : used + tensor.nbytes]
            used += _aligned(tensor.nbytes)
            here.copy_(self._kept[tensor.data_ptr()], non_blocking=True)
            return here.view(tensor.dtype).view(tensor.shape)

        return [each.map_tensors(fetch) for each in weights]

    def _keep(self, tensor: Tensor) -> Tensor:
        kept, seen = self._memory(tensor.nbytes)
        kept.copy_(tensor.contiguous().view(-1).view(torch.uint8))
        self._kept[seen.data_ptr()] = kept
        return seen.view(tensor.dtype).view(tensor.shape)


def staging_bytes(*weights: TensorHolder) -> int:
    """What copies of all these take at once."""
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += _aligned(tensor.nbytes)
        return tensor

    for each in weights:
        each.map_tensors(count)
    return total


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
