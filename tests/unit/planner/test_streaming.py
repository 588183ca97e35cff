"""Which experts are read from disk where a CPU's memory is too small: bytes are counted by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.base.errors import CapacityError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from pagoda.planner.devices.addresses import needed_addresses
from pagoda.planner.memory.streaming import speed_in_words
from pagoda.planner.resolve import Resolution, resolve
from tests.unit.planner.test_offload import DENSE, EXPERTS, GIB, LAYERS, SPARSE

SPARSE_LAYERS = LAYERS - 1  # the first has no experts
TOP_K_SHARE = 8 / 64
WHOLE = 64.0  # GiB in which all fits


def cpu(free: float, total: float = 64.0, packed: bool = True) -> DeviceFacts:
    """So many GiB."""
    storages = frozenset(("BF16", "F16", "F32")) if packed else frozenset()
    return DeviceFacts(
        "cpu", int(total * GIB), int(free * GIB), 4, packed_storages=storages
    )  # fmt: skip


def plan_for(spec, facts, length: int | None = None, **sections) -> Resolution:
    config = EngineConfig(model=ModelConfig("m", max_model_len=length), **sections)
    return resolve(config, spec, {}, facts)


def layers_of(found: Resolution) -> list[int]:
    names = found.plan.placement.params
    assert len(names) % 2 == 0 and all(
        name.endswith(("gate_up.weight", "down.weight")) for name in names
    )
    return sorted({int(name.split(".")[1]) for name in names})


def test_what_fits_stays_in_memory():
    for spec in (DENSE, SPARSE):
        plan = plan_for(spec, cpu(WHOLE)).plan
        assert plan.placement.nbytes == plan.placement.staging == 0
        assert "on disk" not in {row["item"] for row in plan.host_rows()}


def test_as_few_layers_as_make_the_rest_fit():
    whole = plan_for(SPARSE, cpu(WHOLE), 1024).plan
    needed = whole.weights + whole.beside_weights + whole.tables
    needed += whole.slab_bytes * whole.slabs_for(1024) + (512 << 20)  # what a CPU keeps free
    assert plan_for(SPARSE, cpu(needed / GIB), 1024).plan.placement.nbytes == 0
    for short, layers in ((1, 2), (EXPERTS - 1, 2), (EXPERTS + 1, 3), (3 * EXPERTS, 4)):
        found = plan_for(SPARSE, cpu((needed - short) / GIB), 1024)
        plan, placement = found.plan, found.plan.placement
        # What is read passes through memory for one layer.
        assert (placement.experts, placement.staging) == (layers, EXPERTS), short
        assert placement.nbytes == layers * EXPERTS == whole.weights - plan.weights
        assert placement.token_bytes == layers * EXPERTS * TOP_K_SHARE
        assert plan.host_rows() == [
            {"item": "on disk", "bytes": layers * EXPERTS,
             "detail": "experts, read as tokens choose them"}
        ]  # fmt: skip
        (reason,) = (reason for reason in found.reasons if reason.field == "experts_on_disk")
        assert reason.value == f"{layers} of {SPARSE_LAYERS} layers"


def test_layers_on_disk_are_far_apart_and_stay_as_more_join_them():
    found = []
    for free in range(80, 10, -1):
        try:
            found.append(layers_of(plan_for(SPARSE, cpu(free / 10))))
        except CapacityError:
            break
    by_count = {len(layers): layers for layers in found}
    assert by_count[2] == [3, 11] and by_count[3] == [3, 7, 11] and by_count[4] == [3, 7, 9, 11]
    for fewer, more in zip(found, found[1:], strict=False):
        assert set(fewer) <= set(more)


def test_room_is_made_for_a_usual_context_or_the_one_that_is_asked_for():
    alone = plan_for(SPARSE, cpu(7)).plan
    assert 0 < alone.placement.experts < SPARSE_LAYERS and alone.max_model_len >= 4096
    longer = plan_for(SPARSE, cpu(7), 32768).plan
    assert longer.placement.experts > alone.placement.experts and longer.max_model_len == 32768
    pool = CacheConfig(kv_cache_memory_bytes=3 * GIB)
    asked = plan_for(SPARSE, cpu(7), cache=pool).plan
    assert asked.kv_pool > 2.9 * GIB and asked.placement.experts > alone.placement.experts


def test_a_share_of_the_memory_counts_as_its_end():
    half = CacheConfig(gpu_memory_utilization=0.5)
    plan = plan_for(SPARSE, cpu(12, total=12), cache=half).plan
    assert plan.placement.experts > 0 and plan.total <= 6 * GIB


def test_others_are_refused_as_before():
    with pytest.raises(CapacityError, match="--max-num-batched-tokens.$"):
        plan_for(DENSE, cpu(2))
    with pytest.raises(CapacityError, match="One process alone could.*--tensor-parallel-size"):
        plan_for(SPARSE, cpu(2), parallel=ParallelConfig(tensor_parallel_size=2))
    with pytest.raises(CapacityError, match="The native kernels alone could"):
        plan_for(SPARSE, cpu(2, packed=False))
    with pytest.raises(CapacityError, match="That is with all experts read from disk.$"):
        plan_for(SPARSE, cpu(1.2))


def test_mapped_files_take_addresses():
    plan = plan_for(SPARSE, cpu(6)).plan
    bare = replace(plan, placement=replace(plan.placement, nbytes=0))
    assert needed_addresses(plan, 0) - needed_addresses(bare, 0) == plan.placement.nbytes > 0


def test_the_speed_is_what_the_disk_allows():
    plan = plan_for(SPARSE, cpu(6)).plan
    layers = plan.placement.experts
    assert plan.max_chunk == 512
    words = speed_in_words(plan, SPARSE, layers * EXPERTS / 4)
    assert f"those of {layers} of {SPARSE_LAYERS} layers" in words
    # All of it in four seconds, and an eighth of it for a token.
    assert "that allows 2 tokens/s for one reply and 128 for a prompt, more" in words
    assert speed_in_words(plan, SPARSE, None).endswith("How fast the disk reads is not known")


@settings(max_examples=30)
@given(st.floats(1.0, 10), st.floats(1.0, 10), st.sampled_from([None, 512, 16384]))
def test_more_memory_leaves_less_on_disk(one, other, length):
    found = []
    for free in sorted((one, other), reverse=True):
        try:
            plan = plan_for(SPARSE, cpu(free), length).plan
            assert plan.total <= free * GIB
            found.append(plan.placement.nbytes)
        except CapacityError:
            found.append(None)
    larger, smaller = found
    assert smaller is None or (larger is not None and larger <= smaller)
