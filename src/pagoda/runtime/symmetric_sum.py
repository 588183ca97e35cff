"""Small sums of ranks on GPUs, over torch's symmetric memory: one kernel, in which each rank reads
the tensors of all others. A ring passes parts on, and each waits for its neighbour many times."""

from collections.abc import Callable
from typing import Any

import torch

from pagoda.base import env
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes

logger = get_logger(__name__)

# Each rank reads the whole tensor of every other, where a ring moves parts: for small ones that is
# faster. Where the two are equal is assumed, not measured.
MOST_BYTES = 256 << 10
_GROUP: Any = "pagoda"  # torch has a type of its own for these names
# Of what a thread reads at once; all ranks have to agree on whether a tensor is taken.
_ALIGNMENT = 16
# Others have no kernel.
_DTYPES = (torch.bfloat16, torch.float32)


class SymmetricSum:
    """Adds up tensors through `buffer` (uint8, which all ranks can read)."""

    def __init__(self, buffer: torch.Tensor, group: object):
        self._buffer = buffer
        self._group = group
        """Torch finds it by its name for as long as somebody holds it."""

    def takes(self, x: torch.Tensor) -> bool:
        """Whether x (contiguous, of any shape) is small enough, of a dtype that is added, and of
        whole 16 bytes: the same on all ranks."""
        begins = int(x.storage_offset()) * x.itemsize
        aligned = x.nbytes % _ALIGNMENT == begins % _ALIGNMENT == 0
        return x.dtype in _DTYPES and aligned and 0 < x.nbytes <= self._buffer.nbytes

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x (any shape), with the same bits on each: they add in the ranks'
        order."""
        room = self._buffer[: x.nbytes].view(x.dtype).view(x.shape)
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(room, x, "sum", _GROUP)
        return total


def symmetric_sum(
    backend: Any,
    store: Any,
    device: torch.device,
    reduce: Callable[[torch.Tensor], torch.Tensor],
    agree: Callable[[bool], bool],
) -> SymmetricSum | None:
    """What adds up small tensors of the ranks of `backend`, which met in `store`; None where NCCL
    adds up all, and the log says why. All ranks call it, and all get the same.

    `reduce` is NCCL's sum (of any shape), which a first one is compared with;
    `agree` says whether all ranks have something.
    """
    made, why = None, _refusal(device)
    if agree(not why):
        try:
            made = _connected(backend, store, device)
        except (
            RuntimeError,
            ImportError,
            AttributeError,
        ) as error:  # its API is torch's own affair
            why = str(error).splitlines()[0]
    if agree(made is not None) and made is not None:
        if agree(_is_right(made, torch.full((1024,), 1.0 + backend.rank(), device=device), reduce)):
            logger.info(
                "Ranks add up to %s through symmetric memory, and more over NCCL.",
                format_bytes(MOST_BYTES),
            )
            return made
        why = "its first sum was not NCCL's"
    logger.info("Ranks add up over NCCL: %s.", why or "another rank has no symmetric memory")
    return None


def _refusal(device: torch.device) -> str:
    """Why this rank does not try; empty if it does."""
    if not env.get("PAGODA_SYMMETRIC_MEMORY"):
        return "PAGODA_SYMMETRIC_MEMORY is 0"
    try:
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory

        reached = _SymmetricMemory.has_multicast_support(DeviceType.CUDA, device.index)
    except (RuntimeError, ImportError, AttributeError) as error:
        return f"this torch has no symmetric memory ({error})"
    # The kernel waits for the others by atomics in their memory, which not every bus has.
    return "" if reached else "no NVSwitch connects the GPUs"


def _connected(backend: Any, store: Any, device: torch.device) -> SymmetricSum:
    """All ranks call it."""
    from torch import distributed
    from torch._C._distributed_c10d import _register_process_group
    from torch.distributed import _symmetric_memory

    group = distributed.ProcessGroup(store, backend.rank(), backend.size())
    group._register_backend(device, distributed.ProcessGroup.BackendType.NCCL, backend)
    group._set_group_name(_GROUP)
    _register_process_group(_GROUP, group)
    buffer: torch.Tensor = _symmetric_memory.empty(MOST_BYTES, dtype=torch.uint8, device=device)
    _symmetric_memory.rendezvous(buffer, _GROUP)
    return SymmetricSum(buffer, group)


def _is_right(
    made: SymmetricSum, x: torch.Tensor, reduce: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    expected = reduce(x.clone())
    try:
        return torch.equal(made.sum(x), expected)
    except (RuntimeError, AttributeError):
        return False
