"""The host's memory for evicted blocks: counted where it lies, refused where it is too little."""

from dataclasses import replace

import pytest

from pagoda.base.errors import CapacityError
from pagoda.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.resolve import resolve
from tests.unit.planner.test_offload import DENSE, GIB, configure, gpu
from tests.unit.planner.test_resolve import machine


def offloading(config: EngineConfig, gib: float, **cache) -> EngineConfig:
    return replace(config, cache=CacheConfig(kv_offloading_size=gib, **cache))


def on_gpu(gib: float, *, ranks: int = 1, host: float = 256.0, **cache) -> MemoryPlan:
    config = offloading(configure(4096), gib, **cache)
    config = replace(config, parallel=ParallelConfig(tensor_parallel_size=ranks))
    return resolve(config, DENSE, {}, gpu(80, host)).plan


def test_a_gpus_host_has_it_beside():
    plain, plan = on_gpu(0), on_gpu(8)
    assert 7.9 * GIB < plan.host_kv <= 8 * GIB
    assert plan.total == plain.total and plan.num_slabs == plain.num_slabs
    (row,) = plan.host_rows()
    assert (row["item"], row["bytes"]) == ("offloaded KV", plan.host_kv)
    assert plain.host_rows() == []


def test_ranks_share_what_is_asked_for():
    assert 3.9 * GIB < on_gpu(8, ranks=2).host_kv <= 4 * GIB


def test_a_cpu_has_it_in_the_same_memory():
    config = EngineConfig(model=ModelConfig("m", max_model_len=4096))
    facts = machine(64 * GIB)
    plain = resolve(config, DENSE, {}, facts).plan
    plan = resolve(offloading(config, 8), DENSE, {}, facts).plan
    assert plan.total - plain.total == plan.host_kv > 7.9 * GIB
    assert [row["bytes"] for row in plan.rows() if row["item"] == "offloaded KV"] == [plan.host_kv]
    assert plan.host_rows() == []
    with pytest.raises(CapacityError):
        resolve(offloading(config, 64), DENSE, {}, facts)


def test_too_much_and_too_little_is_refused():
    with pytest.raises(CapacityError, match=r"lower it to at most 15\.5"):
        on_gpu(20, host=16)
    with pytest.raises(CapacityError, match="at most 15.5"):
        on_gpu(20, ranks=2, host=16)
    with pytest.raises(CapacityError, match="needs two blocks"):
        on_gpu(1e-6)


def test_without_a_prefix_cache_there_is_nothing_to_keep():
    assert on_gpu(8, enable_prefix_caching=False).num_host_slabs == 0
