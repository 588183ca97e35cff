from pathlib import Path

import pytest

from pagoda.base.facts import DeviceFacts, MemoryNode
from pagoda.base.topology import memory_nodes


def machine(sys: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for number, cpus in nodes.items():
        folder = sys / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for cpu, others in siblings.items():
        folder = sys / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{others}\n")
    return sys


def test_a_laptop_with_two_threads_a_core(tmp_path):
    sys = machine(tmp_path, {0: "0-3"}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    (node,) = memory_nodes(sys, {0, 1, 2, 3})
    assert node == MemoryNode(0, ((0, 2), (1, 3)))
    assert node.cpus == (0, 2, 1, 3)


def test_two_sockets_whose_hardware_threads_are_counted_last(tmp_path):
    pairs = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    sys = machine(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, pairs)
    assert memory_nodes(sys, range(8)) == (
        MemoryNode(0, ((0, 4), (1, 5))),
        MemoryNode(1, ((2, 6), (3, 7))),
    )


def test_affinity_leaves_cores_halves_and_memories_out(tmp_path):
    pairs = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    sys = machine(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, pairs)
    assert memory_nodes(sys, {1, 4, 5}) == (MemoryNode(0, ((1, 5), (4,))),)


def test_memories_without_cpus_are_none_and_numbers_may_have_gaps(tmp_path):
    sys = machine(tmp_path, {0: "0", 1: "", 8: "1"}, {})
    assert memory_nodes(sys, {0, 1}) == (MemoryNode(0, ((0,),)), MemoryNode(8, ((1,),)))


def test_without_sys_each_cpu_is_a_core(tmp_path):
    assert memory_nodes(tmp_path, {3, 5}) == (MemoryNode(0, ((3,), (5,))),)


@pytest.mark.parametrize(("threads", "most"), [(2, 4), (4, 4), (1, 1)])
def test_threads_that_run_at_once(threads, most):
    """With fewer than cores a quota holds."""
    nodes = (MemoryNode(0, ((0, 2), (1, 3))),)
    assert DeviceFacts("cpu", 1, 1, threads, nodes=nodes).most_threads == most
