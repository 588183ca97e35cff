"""An engine on a GPU, played by a CPU, that is too small for the weights."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pagoda.base.errors import CapacityError
from pagoda.base.facts import DeviceFacts
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.start.model_files import spec_of
from pagoda.engine.startup import start_engine
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.resolve import resolve
from pagoda.runtime import device as devices
from pagoda.weights.files import open_model
from tests.engine import test_measured
from tests.engine.conftest import TINY_LLAMA, with_model
from tests.engine.test_measured import MIB, config  # noqa: F401  # a fixture
from tests.engine.test_startup import rows_of

MOE = TINY_LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True,
}  # fmt: skip


class SmallGpu(test_measured.FakeGpu):
    """Which has so many bytes; once asked, it says that everything is free."""

    def __init__(self, nbytes: int, host: int = 64 << 30):
        super().__init__()
        self.total, self.host = nbytes, host
        self.peak = 1 * MIB

    def facts(self) -> DeviceFacts:
        free, self.total = self.total, test_measured.TOTAL
        return replace(super().facts(), free_memory=free, host_memory=self.host)


@pytest.fixture(params=["dense", "experts"])
def tiny(request, config, tmp_path, monkeypatch):  # noqa: F811  # the fixture
    """Of a dense model, and of a mixture of experts."""
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    if request.param == "experts":
        (tmp_path / "config.json").write_text(json.dumps(MOE))
        config = with_model(config, model=str(tmp_path))
    return with_model(config, max_model_len=512)


def start(asked, gpu, monkeypatch):
    monkeypatch.setattr(devices, "make_device", lambda name, index: gpu)
    return start_engine(asked, lambda message: None)


def generate(core) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    core.handle(AddRequest(req_id="a", prompt_token_ids=[5, 6, 7], sampling=sampling))
    tokens = []
    while core.has_work():
        tokens += [token for delta in core.step() for token in delta.token_ids]
    return tokens


def whole_plan(asked) -> MemoryPlan:
    """On a GPU that is large enough."""
    files = open_model(Path(asked.model.model), None)
    return resolve(asked, spec_of(files, asked.model), {}, SmallGpu(6000 * MIB).facts()).plan


@pytest.fixture
def small_gpu(tiny) -> SmallGpu:
    """A byte short of what weights and one request take."""
    plan = whole_plan(tiny)
    return SmallGpu(plan.weights + plan.beside_weights + plan.slabs_for(512) * plan.slab_bytes - 1)


def test_a_small_gpu_serves_the_same(tiny, small_gpu, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    core, ready = start(tiny, SmallGpu(6000 * MIB), monkeypatch)
    expected = generate(core)
    core.shutdown()
    assert "in host memory" not in rows_of(ready, "memory")
    core, ready = start(tiny, small_gpu, monkeypatch)
    memory = rows_of(ready, "memory")
    host = memory["in host memory"]
    assert host["predicted"] == host["measured"] > 0
    assert memory["staging"]["predicted"] > 0
    assert host["predicted"] + memory["weights"]["predicted"] == whole_plan(tiny).weights
    assert rows_of(ready, "choice")["cpu_offload_gb"]["value"] > 0
    assert "in the host's memory, for the device's is too small for all" in caplog.text
    assert generate(core) == expected
    for _ in range(2):
        core.executor.sleep()
        core.executor.wake_up()
        assert generate(core) == expected
    core.shutdown()


def test_captured_steps_of_a_small_gpu(tiny, small_gpu, monkeypatch):
    monkeypatch.setattr(small_gpu, "graph_maker", small_gpu.make_graphs)
    core, _ = start(tiny, SmallGpu(6000 * MIB), monkeypatch)
    expected = generate(core)
    core.shutdown()
    core, _ = start(tiny, small_gpu, monkeypatch)
    while core.when_idle():
        pass
    assert generate(core) == expected
    # Decode steps of three sizes, and steps with prompts of four.
    assert small_gpu.captured == 3 + 4 and small_gpu.replays >= 3 + 4 + 11
    core.shutdown()


def test_too_little_of_the_hosts_memory(tiny, small_gpu, monkeypatch):
    small_gpu.host = 1 << 30
    with pytest.raises(CapacityError, match="One request of 512 tokens needs"):
        start(tiny, small_gpu, monkeypatch)
