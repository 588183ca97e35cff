"""A start on a GPU, played by a CPU that says what such a device would say."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pagoda.base.errors import CapacityError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import CacheConfig, DeviceConfig, ParallelConfig, SchedulerConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.replicas.launch import parts_of
from pagoda.engine.startup import start_engine
from pagoda.runtime import device as devices
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.steps import captured
from tests.engine.test_startup import rows_of

MIB = 1 << 20
TOTAL = 8192 * MIB


class FakeGpu(CpuDevice):
    name = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.free = 6000 * MIB
        self.peak = 300 * MIB
        self.profiled = self.captured = self.replays = 0

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cuda", TOTAL, self.free, 1, name="Fake", capability=90)

    def memory_used(self) -> int:
        return 100 * MIB

    def peak_of(self, work) -> int:
        self.profiled += 1
        work()
        return self.peak

    def make_graphs(self):
        def make(work):
            self.captured += 1

            def replay() -> None:
                self.replays += 1
                work()

            return SimpleNamespace(replay=replay)

        return lambda: make

    def set_threads(self, count: int, **options: object) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch, tmp_path) -> FakeGpu:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    gpu = FakeGpu()
    monkeypatch.setattr(devices, "make_device", lambda name, index: gpu)
    return gpu


@pytest.fixture
def config(tiny_config):
    # Small pools: they are really made.
    return replace(
        tiny_config,
        device=DeviceConfig(device="cuda"),
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )


def start(config):
    core, ready = start_engine(config, lambda message: None)
    core.shutdown()
    return ready


def with_length(config, length):
    return replace(config, model=replace(config.model, max_model_len=length))


def test_a_second_start_skips_the_profile(config, gpu):
    first = start(config)
    assert gpu.profiled == 1
    assert rows_of(first, "memory")["activations"]["measured"] == gpu.peak
    assert rows_of(first, "memory")["captured steps"]["predicted"] > 0
    assert rows_of(first, "choice")["attention"]["value"] == "triton"
    again = start(config)
    assert gpu.profiled == 1
    assert again.num_blocks == first.num_blocks
    start(replace(config, scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)))
    assert gpu.profiled == 2


def test_a_replica_loads_on_a_gpu_of_its_own(config, gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "make_device", lambda *args: asked.append(args) or gpu)
    parallel = ParallelConfig(data_parallel_size=3)
    room = parts_of(MemoryRoom(), replace(config, parallel=parallel))[2]
    core, _ = start_engine(replace(config, parallel=parallel), lambda message: None, room=room)
    core.shutdown()
    assert asked == [("cuda", 2)]


def test_a_damaged_profile_is_made_again(config, gpu, tmp_path):
    start(config)
    (kept,) = (tmp_path / "steps").iterdir()
    kept.write_text("{")
    start(config)
    assert gpu.profiled == 2


def test_the_pool_takes_what_is_really_free(config, gpu):
    """Others took memory while the weights were loaded."""
    wide = with_length(config, 512)
    alone = start(wide).num_blocks
    slab = rows_of(start(wide), "choice")["kv_cache_memory_bytes"]["value"] // alone
    memory = rows_of(start(wide), "memory")
    beside = memory["captured steps"]["predicted"] + memory["positions"]["predicted"]
    gpu.free = gpu.peak + beside + 256 * MIB + 40 * slab
    # What `resolve` sees before: enough for the headers' prediction.
    assert start(wide).num_blocks == 40 < alone


def test_the_share_of_the_device_counts_what_is_held(config, gpu):
    cache = CacheConfig(gpu_memory_utilization=0.09)
    with pytest.raises(CapacityError, match="The weights are loaded, and 237.28 MiB are left"):
        start(replace(config, cache=cache))


def test_an_automatic_context_follows_the_measured_memory(config, gpu, monkeypatch):
    captured = rows_of(start(config), "memory")["captured steps"]["predicted"]
    slab = 16 * 2 * 2 * 2 * 8 * 4  # tokens, layers, K and V, heads, dimensions, bytes
    table = 4 * 16 * 8 * 4  # positions, dimensions, bytes
    gpu.free = gpu.peak + captured + 256 * MIB + 5 * slab + table
    assert start(with_length(config, "auto")).max_model_len == 4 * 16


def test_a_chosen_pool_needs_no_profile(config, gpu):
    ready = start(replace(config, cache=CacheConfig(kv_cache_memory_bytes=4 * MIB)))
    assert gpu.profiled == 0
    assert rows_of(ready, "memory")["KV pool"]["predicted"] <= 4 * MIB


def generate(config) -> list[int]:
    """Tokens of a request that meets an engine with nothing left to do ahead."""
    core, _ = start_engine(config, lambda message: None)
    while core.when_idle():
        pass
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    core.handle(AddRequest(req_id="a", prompt_token_ids=[5, 6, 7], sampling=sampling))
    tokens = []
    while core.has_work():
        tokens += [token for delta in core.step() for token in delta.token_ids]
    core.shutdown()
    return tokens


def test_compilations_are_told_around_first_steps(config, gpu, monkeypatch):
    """And when nothing is left to do ahead."""
    said = []
    log = SimpleNamespace(
        expect=lambda name, model: said.append((name, model)),
        report=lambda doing: said.append((doing, gpu.profiled)),
    )
    monkeypatch.setattr(gpu, "kernel_log", log, raising=False)
    generate(config)
    assert [name for name, _ in said] == ["Fake", "First steps", "Later steps"]
    generate(with_length(config, 128))
    assert said[0] == said[3]  # the same kernels
    generate(replace(config, model=replace(config.model, dtype="float16")))
    assert said[6] != said[0]


def test_an_idle_engine_captures_and_serves_the_same(config, gpu, monkeypatch):
    config = with_length(config, 512)
    monkeypatch.setattr(gpu, "graph_maker", gpu.make_graphs)
    # Or a slow machine captures, and replays, more between the first steps.
    monkeypatch.setattr(captured, "_SHARE", 1e-9)
    eager = generate(replace(config, device=DeviceConfig(device="cuda", enforce_eager=True)))
    assert gpu.captured == gpu.replays == 0
    assert generate(config) == eager
    assert gpu.captured == 3 + 4  # of 1, 2 and 4 requests; with prompts of up to 16, 32, 48, 64
    # One each to check it; then the prompt's step, which gives the first token, and eleven more.
    assert gpu.replays == 7 + 1 + 11
