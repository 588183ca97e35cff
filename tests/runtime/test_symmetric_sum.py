"""Which sums of ranks go through torch's symmetric memory, whose module is played on CPUs."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch.distributed import _symmetric_memory as symmetric

from pagoda.layers.context import Parallel
from pagoda.runtime.rank_group import RankGroup
from pagoda.runtime.symmetric_sum import MOST_BYTES, symmetric_sum
from tests.models.gloo_ranks import on_ranks

CPU = torch.device("cpu")


class Played:
    """Memory that both threads can read, and the kernel that adds up what lies there."""

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []
        self.taken: list[tuple[int, ...]] = []
        self.reached = [True, True]
        self.met = [True, True]
        self.error = 0.0
        self._barrier = threading.Barrier(2)

    def has_multicast_support(self, kind: object, index: int | None) -> bool:
        return self.reached.pop()

    def empty(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def rendezvous(self, buffer: torch.Tensor, group: str) -> None:
        if not self.met.pop():
            raise RuntimeError("the driver has no handle\nand more")
        self.buffers.append(buffer)

    def add(self, room: torch.Tensor, x: torch.Tensor, how: str, group: str) -> torch.Tensor:
        assert how == "sum" and room.shape == x.shape and room.dtype == x.dtype
        room.copy_(x)
        self._barrier.wait(60)
        views = [each[: x.nbytes].view(x.dtype).view(x.shape) for each in self.buffers]
        total = views[0] + views[1] + self.error
        self.taken.append(tuple(x.shape))
        self._barrier.wait(60)
        return total


@pytest.fixture
def played(monkeypatch) -> Played:
    played = Played()

    def group(store: Any, rank: int, size: int) -> SimpleNamespace:
        return SimpleNamespace(
            _register_backend=lambda *backend: None, _set_group_name=lambda name: None
        )

    group.BackendType = distributed.ProcessGroup.BackendType
    monkeypatch.setattr(distributed, "ProcessGroup", group)
    monkeypatch.setattr(c10d, "_register_process_group", lambda name, group: None)
    monkeypatch.setattr(c10d, "_SymmetricMemory", played)
    monkeypatch.setattr(symmetric, "empty", played.empty)
    monkeypatch.setattr(symmetric, "rendezvous", played.rendezvous)
    monkeypatch.setattr(torch.ops.symm_mem, "one_shot_all_reduce_copy", played.add, raising=False)
    return played


def chosen(parallel: Parallel) -> RankGroup:
    """The rank's group, as `connect` leaves it on a GPU."""
    group = parallel.reduce.__self__
    group._small = symmetric_sum(group._group, None, CPU, group.reduce, group.agree)
    return group


def test_small_tensors_take_it_and_others_do_not(played, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    wide = MOST_BYTES // 4
    cases = [
        (torch.ones(3, 64), True), (torch.ones(2, 8, dtype=torch.bfloat16), True),
        (torch.ones(wide), True), (torch.ones(wide + 4), False), (torch.ones(5), False),
        (torch.ones(64, dtype=torch.float16), False),
        (torch.ones(64, dtype=torch.int32), False), (torch.ones(0, 64), False),
    ]  # fmt: skip

    def run(parallel: Parallel) -> list[torch.Tensor]:
        group = chosen(parallel)
        assert not group._small.takes(torch.ones(9)[1:]), "it begins within 16 bytes"
        return [group.reduce(x * (parallel.rank + 2)) for x, _ in cases]

    for sums in on_ranks(2, run):
        for found, (x, _) in zip(sums, cases, strict=True):
            assert torch.equal(found, x * 5) and found.dtype == x.dtype
    small = [tuple(x.shape) for x, takes in cases if takes]
    assert sorted(played.taken) == sorted([(1024,), *small] * 2)
    assert caplog.text.count("Ranks add up to 256.00 KiB through symmetric memory") == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reached": [True, False]}, "no NVSwitch connects the GPUs"),
        ({"reached": [False, False]}, "no NVSwitch connects the GPUs"),
        ({"met": [True, False]}, "the driver has no handle"),
        ({"error": 1.0}, "its first sum was not NCCL's"),
    ],
)
def test_what_one_rank_cannot_do_none_does(change, why, played, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    for name, value in change.items():
        setattr(played, name, value)

    def run(parallel: Parallel) -> tuple[bool, torch.Tensor]:
        group = chosen(parallel)
        return group._small is None, group.reduce(torch.ones(64))

    for left_out, total in on_ranks(2, run):
        assert left_out and torch.equal(total, torch.full((64,), 2.0))
    assert f"Ranks add up over NCCL: {why}." in caplog.text
    assert caplog.text.count("Ranks add up over NCCL") == 2


def test_a_variable_leaves_all_to_nccl(played, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    monkeypatch.setenv("PAGODA_SYMMETRIC_MEMORY", "0")
    assert on_ranks(2, lambda parallel: chosen(parallel)._small) == [None, None]
    assert "PAGODA_SYMMETRIC_MEMORY is 0" in caplog.text and played.reached == [True, True]


def test_the_torch_that_is_installed_takes_the_group(monkeypatch, tmp_path, caplog):
    """All but the memory, which a CPU has not."""
    caplog.set_level(logging.INFO, "pagoda")
    monkeypatch.setattr(c10d._SymmetricMemory, "has_multicast_support", lambda kind, index: True)
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    try:
        group = distributed.ProcessGroupGloo(store, 0, 1)
        assert symmetric_sum(group, store, CPU, lambda x: x, lambda ok: ok) is None
        assert "Ranks add up over NCCL: " in caplog.text
        assert "SymmetricMemory" in caplog.text, "torch's own words"
    finally:
        c10d._unregister_process_group("pagoda")
