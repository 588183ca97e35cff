"""Two ranks on GPUs that tests play, with a KV pool that fits what both of them measured."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pagoda.base.errors import CapacityError
from pagoda.config.engine import CacheConfig, DeviceConfig, ParallelConfig
from pagoda.engine.ranks import executor as ranks
from pagoda.engine.ranks.starter import LocalStarter
from pagoda.engine.startup import start_engine
from pagoda.runtime import device as devices
from tests.engine.gpu_rank import PEAKS, PlayedGpu
from tests.engine.running import run, tokens
from tests.engine.test_ranks import config_of, expected, request
from tests.engine.test_startup import rows_of
from tests.models import tiny

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# Tokens, layers, K and V, heads of a rank, dimensions, bytes.
SLAB = 16 * 3 * 2 * 1 * 16 * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    reference = tiny.make("llama")
    reference.save_pretrained(folder)
    return reference, folder


@pytest.fixture
def begin(model, monkeypatch, tmp_path):
    """Starts the engine; gives it, what it says of itself, and rank 0's device."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    monkeypatch.setattr(
        ranks, "LocalStarter", partial(LocalStarter, module="tests.engine.gpu_rank")
    )
    cache = CacheConfig(block_size=16)
    config = replace(config_of(model[1], 2), device=DeviceConfig("cuda"), cache=cache)
    cores = []

    def start(parallel: ParallelConfig = config.parallel):
        gpu = PlayedGpu()
        monkeypatch.setattr(devices, "make_device", lambda name, index: gpu)
        own = replace(config, parallel=parallel)
        core, ready = start_engine(own, lambda message: None)
        cores.append(core)
        return core, ready, gpu

    yield start
    for core in cores:
        core.shutdown()


def test_the_pool_fits_the_fullest_rank(begin, model, monkeypatch):
    """Which takes more for a step, too. The next start knows what that takes."""
    core, ready, gpu = begin()
    memory = rows_of(ready, "memory")
    assert gpu.profiled == 1 and memory["activations"]["measured"] == PEAKS[1]
    core.shutdown()
    beside = memory["captured steps"]["predicted"] + memory["positions"]["predicted"]
    fewest = 40 * SLAB + beside + PEAKS[1] + 256 * MIB
    monkeypatch.setenv("PLAYED_FREE", f"{4 << 30} {fewest}")
    core, small, gpu = begin()
    assert gpu.profiled == 0
    assert small.num_blocks == 40 < ready.num_blocks
    prompts = {f"r{i}": tiny.random_ids(40, seed=i) for i in range(12)}
    deltas = run(core, *(request(name, prompt) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert tokens(deltas[name]) == expected(model[0], prompt), name


def test_stages_measure_their_own_layers(begin, model):
    """Each by itself; several steps are under way, none of them captured."""
    core, ready, gpu = begin(ParallelConfig(1, 2))
    memory = rows_of(ready, "memory")
    assert gpu.profiled == 1 and memory["activations"]["measured"] == PEAKS[1]
    assert "captured steps" not in memory and core.executor.steps_in_flight == 2
    prompts = {f"r{i}": tiny.random_ids(40, seed=i) for i in range(4)}
    deltas = run(core, *(request(name, prompt) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert tokens(deltas[name]) == expected(model[0], prompt), name


def test_a_context_that_fits_no_rank_is_an_error(begin, monkeypatch):
    monkeypatch.setenv("PLAYED_FREE", f"{4 << 30} {400 * MIB}")
    with pytest.raises(CapacityError, match="The weights are loaded, and 144.00 MiB are left"):
        begin()


def test_a_rank_without_memory_for_a_step_is_named(begin, monkeypatch):
    monkeypatch.setenv("PLAYED_SHORT", "1")
    with pytest.raises(CapacityError, match="^Rank 1: .*out of memory, as played"):
        begin()
