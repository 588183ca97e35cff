"""What ranks exchange while they compute: over gloo between CPUs, over NCCL between GPUs."""

from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from pagoda.layers.context import Parallel
from pagoda.runtime.meeting import Meeting, no_library, peers_needed
from pagoda.runtime.symmetric_sum import SymmetricSum, symmetric_sum

# Ranks do the same at the same time: one that lets the others wait for so long hangs. The first
# step may compile kernels, which takes a minute or two.
_EXCHANGE = timedelta(minutes=10)
# Tags of what goes from stage to stage, and from the last one to rank 0.
_ON, _BACK = 1, 2
# Sent by one rank in a step, at most.
_MESSAGES = 3


class RankGroup:
    """One rank's line to the others. `parallel` is what layers are built with.

    The first `size` ranks are the first stage of a pipeline, the next ones the second, and so on.
    """

    def __init__(self, rank: int, size: int, num_stages: int = 1):
        """`size`: ranks that share each layer."""
        self.rank = rank
        self.stage, place = divmod(rank, size)
        self.num_stages = num_stages
        self.parallel = Parallel(place, size)
        if size > 1:
            self.parallel = Parallel(place, size, self.reduce, self.gather)
        self._group: Any = None
        """Those of its stage."""
        self._stages: Any = None
        """All ranks of a pipeline."""
        self._hosts: Any = None
        """All ranks, for what is in the host's memory."""
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        """What others may not have taken yet."""
        self._small: SymmetricSum | None = None
        """What adds up small tensors, where the GPUs can read each other's memory."""
        self._votes = torch.empty(0)

    def connect(self, device: torch.device, meeting: Meeting) -> None:
        """Meet the others.

        ConfigError where torch has no library for the device; PeerLostError after a minute.
        """
        from torch import distributed

        if device.type == "cuda" and not distributed.is_nccl_available():
            raise no_library("NCCL")
        # Made now: a rank may have to say that it found no memory.
        self._votes = torch.zeros(1, dtype=torch.int32, device=device)
        store, address = meeting.store, meeting.address
        place, size = self.parallel.rank, self.parallel.size
        first = self.stage * size
        make = _nccl if device.type == "cuda" else partial(_gloo, address)
        with peers_needed():
            own = distributed.PrefixStore(f"stage {self.stage}", store)  # type: ignore[attr-defined]
            if size > 1:
                self._group = make(own, place, size, device)
            beside = meeting.is_beside(first, first + size - 1)
            if size > 1 and device.type == "cuda" and beside:
                self._small = symmetric_sum(self._group, own, device, self.reduce, self.agree)
            if self.num_stages == 1:
                return
            every = distributed.PrefixStore("all", store)  # type: ignore[attr-defined]
            self._stages = self._hosts = make(every, self.rank, self.num_ranks, device)
            if device.type == "cuda":
                hosts = distributed.PrefixStore("hosts", store)  # type: ignore[attr-defined]
                self._hosts = _gloo(address, hosts, self.rank, self.num_ranks, device)

    @property
    def num_ranks(self) -> int:
        return self.parallel.size * self.num_stages

    @property
    def _all(self) -> Any:
        return self._group if self.num_stages == 1 else self._stages

    @property
    def is_last(self) -> bool:
        """Whether this is one of the last stage's ranks, which have logits."""
        return self.stage == self.num_stages - 1

    def hand_on(self, x: torch.Tensor) -> None:
        """Send a contiguous tensor of the device, of any shape, to this rank's neighbour in the
        next stage. It is not waited for; `x` stays as it is meanwhile."""
        with peers_needed():
            self._keep(self._stages.send([x], self.rank + self.parallel.size, _ON), x)

    def handed_on(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of the device, of any shape, filled with what the neighbour in the stage before has
        handed on."""
        with peers_needed():
            self._stages.recv([x], self.rank - self.parallel.size, _ON).wait()
        return x

    def give_back(self, x: torch.Tensor) -> None:
        """Send a contiguous tensor of the host, of any shape, to rank 0, from the first rank of the
        last stage. It goes from host to host: rank 0's device may have computed further by then,
        and would let a device that waits for it wait for itself."""
        with peers_needed():
            self._keep(self._hosts.send([x], 0, _BACK), x)

    def given_back(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of the host, of any shape, filled with what the last stage has given back."""
        with peers_needed():
            self._hosts.recv([x], self.num_ranks - self.parallel.size, _BACK).wait()
        return x

    def _keep(self, work: Any, x: torch.Tensor) -> None:
        """Rank 0 hears of a step before it plans the one that is `num_stages` behind it: whatever
        was sent so long ago was taken."""
        self._sent.append((work, x))
        while len(self._sent) > _MESSAGES * (self.num_stages + 1):
            self._sent.popleft()[0].wait()

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors of any shape, the same bits on each; may change `x`."""
        x = x.contiguous()
        if self._small is not None and self._small.takes(x):
            return self._small.sum(x)
        with peers_needed():
            self._group.allreduce([x]).wait()
        return x

    def gather(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """As `Parallel.gather`; every rank of the stage gets the whole."""
        return self._gathered(self._group, self.parallel.size, part, columns)

    def gather_all(self, part: torch.Tensor) -> torch.Tensor:
        """The parts [rows, columns] of all ranks of all stages, side by side."""
        return self._gathered(self._all, self.num_ranks, part, part.shape[1] * self.num_ranks)

    @staticmethod
    def _gathered(group: Any, size: int, part: torch.Tensor, columns: int) -> torch.Tensor:
        width = -(-columns // size)
        if part.shape[1] < width:
            part = torch.nn.functional.pad(part, (0, width - part.shape[1]))
        parts = part.new_empty((size * len(part), width))
        with peers_needed():
            group._allgather_base(parts, part.contiguous()).wait()
        whole = parts.view(size, len(part), width).transpose(0, 1).flatten(1)
        return whole[:, :columns].contiguous()

    def broadcast(self, x: torch.Tensor) -> None:
        """The contiguous tensor of a stage's first rank, of any shape, into those of its others."""
        if self.parallel.size > 1:
            with peers_needed():
                self._group.broadcast([x]).wait()

    def broadcast_all(self, x: torch.Tensor) -> None:
        """Rank 0's contiguous tensor, of any shape, into those of all others."""
        with peers_needed():
            self._all.broadcast([x]).wait()

    def agree(self, good: bool) -> bool:
        """Whether all ranks say that it is good; waits for the device."""
        return int(self.reduce(self._votes.fill_(int(good)))) == self.parallel.size

    def abort(self) -> None:
        """Wake whoever waits for a rank that is gone; gloo sees that by itself."""
        for group in {self._group, self._stages} - {None}:
            if group.name() == "nccl":
                group.abort()


def _nccl(store: Any, rank: int, size: int, device: torch.device) -> Any:
    from torch import distributed

    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = _EXCHANGE
    group = distributed.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


def _gloo(address: str, store: Any, rank: int, size: int, device: torch.device) -> Any:
    from torch import distributed

    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in stubs
    options._timeout = _EXCHANGE
    # By default it would listen where the machine's name resolves to.
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    return distributed.ProcessGroupGloo(store, rank, size, options)
