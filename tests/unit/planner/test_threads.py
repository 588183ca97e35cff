"""Threads and the memories that they are beside, on machines that are not there."""

from dataclasses import replace

import pytest

from pagoda.base.facts import DeviceFacts, MemoryNode
from pagoda.config.engine import DeviceConfig, EngineConfig, ParallelConfig
from pagoda.planner.resolved import NodeThreads
from pagoda.planner.threads import resolve_threads


def node(number: int, first: int, cores: int, threads: int = 1) -> MemoryNode:
    """With `threads` CPUs a core, numbered one after the other."""
    return MemoryNode(
        number, tuple(tuple(range(first + i * threads, first + (i + 1) * threads))
                      for i in range(cores)),
    )  # fmt: skip


LAPTOP = (node(0, 0, 4, 2),)
TWO_SOCKETS = (node(0, 0, 16), node(1, 16, 16))
UNEVEN = (node(0, 0, 6), node(2, 6, 2))


def resolved(nodes, usable=None, ranks=1, **flags):
    cores = sum(len(one.cores) for one in nodes)
    facts = DeviceFacts("cpu", 1, 1, usable or cores, nodes=nodes)
    config = EngineConfig(
        device=DeviceConfig(**flags), parallel=ParallelConfig(tensor_parallel_size=ranks)
    )
    reasons = []
    found = resolve_threads(config, facts, reasons)
    return *found, {reason.field: reason.why for reason in reasons}


def test_one_memory_binds_nobody():
    assert resolved(LAPTOP)[:2] == (4, ())
    assert "one a core; 8" in resolved(LAPTOP)[2]["threads"]
    assert "4 cores" in resolved(LAPTOP, usable=8)[2]["threads"]


def test_each_socket_has_its_threads():
    threads, nodes, why = resolved(TWO_SOCKETS)
    assert threads == 32
    assert nodes == (
        NodeThreads(0, tuple(range(16)), 16),
        NodeThreads(1, tuple(range(16, 32)), 16),
    )
    assert "16 threads on node 0, 16 threads on node 1" in why["numa"]


@pytest.mark.parametrize(
    ("threads", "counts"), [(2, [1, 1]), (4, [3, 1]), (8, [6, 2]), (7, [6, 1]), (16, [12, 4])]
)
def test_threads_are_dealt_by_cores(threads, counts):
    _, nodes, _ = resolved(UNEVEN, usable=threads)
    assert [one.threads for one in nodes] == counts
    assert [one.memory for one in nodes] == [0, 2]


def test_fewer_threads_that_were_asked_for_are_dealt_too():
    threads, nodes, why = resolved(TWO_SOCKETS, threads=4)
    assert (threads, [one.threads for one in nodes]) == (4, [2, 2])
    assert "threads" not in why


def test_off_and_where_it_cannot_be():
    assert resolved(TWO_SOCKETS, numa="off")[1] == ()
    assert resolved(TWO_SOCKETS, ranks=2)[1] == ()
    many = tuple(node(i, i, 1) for i in range(17))
    for nodes, flags in ((many, {}), (TWO_SOCKETS, {"threads": 1})):
        _, found, why = resolved(nodes, **flags)
        assert found == () and why["numa"]


def test_a_gpu_has_no_nodes():
    facts = DeviceFacts("cuda", 1, 1, 32, nodes=TWO_SOCKETS)
    assert resolve_threads(EngineConfig(), facts, []) == (32, ())
    assert resolve_threads(EngineConfig(), replace(facts, device="cpu", nodes=()), [])[1] == ()
