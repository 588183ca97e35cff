"""Kernels on machines with several memories: emulated, for here is one. What the system is told and
who computes what are seen all the same."""

import os
import re
from pathlib import Path

import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.kernels.cpu import siblings
from pagoda.kernels.cpu.siblings import Seconds
from pagoda.kernels.ref import experts as ref
from pagoda.planner.resolved import NodeThreads
from tests.kernels import packed
from tests.kernels.packed import _native
from tests.kernels.test_experts import GATINGS, random_experts
from tests.kernels.test_native_experts import pack

NUMA_MAPS = Path("/proc/self/numa_maps")
COLUMNS = 512
TOPOLOGIES = {
    "two": [1, 1],
    "uneven": [3, 1],
    "four": [1, 2, 1, 2],
    "most": [1] * 16,
}


def nodes(counts: list[int]) -> list[NodeThreads]:
    """All beside the memory that is here, on any CPU."""
    return [NodeThreads(0, (), count) for count in counts]


@pytest.mark.parametrize("counts", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize("storage", ["Q4_1", "Q8_0", "Q4_K", "BF16"])
def test_products_have_the_same_bits(counts, storage):
    """Of one matrix and of several, with fewer panels than threads and with many, and of more
    tokens than a segment has."""
    alone, several = _native.Native(1), _native.Native(nodes(counts))
    assert (several.num_nodes, several.num_threads) == (len(counts), sum(counts))
    for rows in ([5], [48], [1000, 16, 333]):
        raws = [packed.random_raw(storage, count, COLUMNS, seed=count) for count in rows]
        for tokens in (1, 7, 300):
            x = torch.randn(tokens, COLUMNS, generator=torch.Generator().manual_seed(tokens))
            expected, found = (
                packed.multiply(native, x, [packed.pack(native, storage, r, COLUMNS) for r in raws])
                for native in (alone, several)
            )
            assert torch.equal(found, expected)


@pytest.mark.parametrize("counts", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_experts_have_the_same_bits(counts, monkeypatch):
    found = []
    for native in (_native.Native(1), _native.Native(nodes(counts))):
        monkeypatch.setattr(cpu, "_cached", {"native": native})
        torch.manual_seed(3)
        up, down = random_experts(7, 48, 40, bias=True)
        routed = ref.route(torch.randn(33, 7), 3, "topk_softmax", False)
        found.append(
            ops.mix_experts(
                torch.randn(33, 48),
                ops.Routed(*routed[:2]),
                pack(up.weight, 2, up.bias),
                pack(down.weight, 1, down.bias),
                next(iter(GATINGS.values())),
                weighs_inputs=False,
            )
        )
    assert torch.equal(*found)


@pytest.fixture
def two_cpus():
    """Two that this process may use; the thread of the test is on the first."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("one CPU cannot be two nodes")
    os.sched_setaffinity(0, usable[:1])
    yield usable[:2]
    os.sched_setaffinity(0, usable)


def test_each_node_computes_what_is_its_own(two_cpus):
    first, second = two_cpus
    native = _native.Native([NodeThreads(0, (first,), 1), NodeThreads(0, (second,), 1)])
    places = native.probe_cpus(8, 0.02)
    assert set(places) == {first, second}
    # What one leaves the other takes in the end.
    assert (places[0], places[4]) == (first, second)


def test_nobody_waits_for_a_node_that_is_busy(two_cpus):
    """All threads of a node are held up, as by another program: the others take its chunks."""
    first, second = two_cpus
    native = _native.Native([NodeThreads(0, (first,), 1), NodeThreads(0, (second,), 1)])
    os.sched_setaffinity(0, [second])  # the caller counts for the node where it is
    places = native.probe_cpus(4, 0.02)
    assert places[2] == second


@pytest.mark.skipif(not NUMA_MAPS.exists(), reason="this Linux knows no NUMA")
def test_weights_are_asked_for_beside_their_threads():
    raw = packed.random_raw("Q8_0", 4096, COLUMNS)

    def preferring() -> int:
        """Bytes of memory that is to come from node 0."""
        page = os.sysconf("SC_PAGESIZE")
        lines = [line for line in NUMA_MAPS.read_text().splitlines() if " prefer" in line]
        return page * sum(int(n) for line in lines for n in re.findall(r"\bN0=(\d+)", line))

    before = preferring()
    alone = packed.pack(_native.Native(2), "Q8_0", raw, COLUMNS)
    assert preferring() == before
    matrix = packed.pack(_native.Native(nodes([1, 1])), "Q8_0", raw, COLUMNS)
    assert 0 <= alone.nbytes - (preferring() - before) <= 64 * 1024
    assert torch.equal(*(packed.unpack(_native.Native(1), one) for one in (alone, matrix)))


@pytest.mark.parametrize(
    ("nodes", "why"),
    [([], "1 to 16 nodes"), ([(0, (), 1)] * 17, "1 to 16 nodes"), ([(0, (), 0)], "one thread")],
)
def test_pools_that_cannot_be(nodes, why):
    with pytest.raises(ValueError, match=why):
        _native.Native(nodes)


def test_set_num_threads_takes_nodes(monkeypatch):
    monkeypatch.setattr(cpu, "_cached", {"native": _native.Native(2)})
    cpu.set_num_threads(2, nodes([1, 1]))
    assert cpu.native().num_nodes == 2
    kept = cpu.native()
    cpu.set_num_threads(2, nodes([1, 1]))
    assert cpu.native() is kept
    cpu.set_num_threads(2)
    assert cpu.native().num_nodes == 1


@pytest.mark.parametrize(
    ("many", "threads"),
    [
        (Seconds(0.9, 1.0), 8),  # decoding gains
        (Seconds(1.0, 0.8), 8),  # prompts do
        (Seconds(0.98, 0.99), 4),  # noise
        (Seconds(0.8, 1.1), 4),  # one gains, the other loses
        (Seconds(1.3, 1.2), 4),
    ],
)
def test_a_second_thread_of_a_core_has_to_earn(many, threads):
    asked = []

    def measure(counts):
        asked.append(counts)
        return [Seconds(1.0, 1.0), many]

    assert siblings.worth_starting(4, 8, measure) == threads
    assert asked == [[4, 8]]


def test_measuring_times_real_products():
    one, two = siblings.measured(_native.Native, [1, 2])
    assert 0 < one.token < one.prompt and 0 < two.token < two.prompt


def test_facts_measure_only_where_cores_run_two(monkeypatch):
    monkeypatch.setattr(cpu, "_worth_starting", lambda cores, threads: 99)
    cores = cpu.cpu_facts().num_threads
    monkeypatch.setattr(cpu, "usable_threads", lambda: cores)
    assert cpu.device_facts().num_threads == cores
    monkeypatch.setattr(cpu, "usable_threads", lambda: 2 * cores)
    assert cpu.device_facts().num_threads == 99
