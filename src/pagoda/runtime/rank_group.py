"""What ranks exchange while they compute: over gloo between CPUs, over NCCL between GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from pagoda.base.errors import ConfigError
from pagoda.layers.context import Parallel
from pagoda.runtime.symmetric_sum import SymmetricSum, symmetric_sum

# Ranks do the same at the same time: one that lets the others wait for so long hangs. The first
# step may compile kernels, which takes a minute or two.
_EXCHANGE = timedelta(minutes=10)
# All ranks have said that they are there before the first one waits for them.
_MEETING = timedelta(minutes=1)


class PeerLostError(Exception):
    """Another rank did not answer: it is gone, or hangs.

    No RuntimeError: whoever goes on behind one of torch's cannot go on behind this one.
    """


class RankGroup:
    """One rank's line to the others on this machine. `parallel` is what layers are built with."""

    def __init__(self, rank: int, size: int):
        self.parallel = Parallel(rank, size, self.reduce, self.gather)
        self._group: Any = None
        self._small: SymmetricSum | None = None
        """What adds up small tensors, where the GPUs can read each other's memory."""
        self._votes = torch.empty(0)

    def connect(self, device: torch.device, path: Path) -> None:
        """Meet the others, who come with the same `path` (of a file, in a private folder).

        ConfigError where torch has no library for the device; PeerLostError after a minute.
        """
        from torch import distributed

        if not distributed.is_available() or (
            device.type == "cuda" and not distributed.is_nccl_available()
        ):
            raise ConfigError(
                f"This torch cannot connect several {device.type} devices; install a build with "
                "torch.distributed, or leave out --tensor-parallel-size."
            )
        rank, size = self.parallel.rank, self.parallel.size
        # Made now: a rank may have to say that it found no memory.
        self._votes = torch.zeros(1, dtype=torch.int32, device=device)
        store = distributed.FileStore(str(path), size)  # type: ignore[attr-defined]  # not in stubs
        store.set_timeout(_MEETING)
        with _peers_needed():
            if device.type == "cuda":
                options = distributed.ProcessGroupNCCL.Options()
                options._timeout = _EXCHANGE
                self._group = distributed.ProcessGroupNCCL(store, rank, size, options)
                self._group.eager_connect_single_device(device)
                self._small = symmetric_sum(self._group, store, device, self.reduce, self.agree)
                return
            options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in stubs
            options._timeout = _EXCHANGE
            # By default it would listen where the machine's name resolves to.
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            self._group = distributed.ProcessGroupGloo(store, rank, size, options)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors of any shape, the same bits on each; may change `x`."""
        x = x.contiguous()
        if self._small is not None and self._small.takes(x):
            return self._small.sum(x)
        with _peers_needed():
            self._group.allreduce([x]).wait()
        return x

    def gather(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """As `Parallel.gather`; every rank gets the whole."""
        size = self.parallel.size
        width = -(-columns // size)
        if part.shape[1] < width:
            part = torch.nn.functional.pad(part, (0, width - part.shape[1]))
        parts = part.new_empty((size * len(part), width))
        with _peers_needed():
            self._group._allgather_base(parts, part.contiguous()).wait()
        whole = parts.view(size, len(part), width).transpose(0, 1).flatten(1)
        return whole[:, :columns].contiguous()

    def broadcast(self, x: torch.Tensor) -> None:
        """Rank 0's contiguous tensor, of any shape, into those of the others."""
        with _peers_needed():
            self._group.broadcast([x]).wait()

    def agree(self, good: bool) -> bool:
        """Whether all ranks say that it is good; waits for the device."""
        return int(self.reduce(self._votes.fill_(int(good)))) == self.parallel.size

    def abort(self) -> None:
        """Wake whoever waits for a rank that is gone; gloo sees that by itself."""
        if self._group is not None and self._group.name() == "nccl":
            self._group.abort()


@contextmanager
def _peers_needed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error)) from error
