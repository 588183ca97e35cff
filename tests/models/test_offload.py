"""Models with weights in the host's memory compute what they compute wholly on the device."""

import pytest
import torch

from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig
from pagoda.layers.context import Parallel
from pagoda.layers.loading import WeightedLayer
from pagoda.planner.memory.placement import placed, placements
from pagoda.planner.memory.weights import held_weights
from pagoda.planner.resolve import resolve
from pagoda.quant.host import HostWeights
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.sleep import OffloadedTensors, tensors_of
from pagoda.weights.files import open_model
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_captured import capture
from tests.models.test_program import replay

MODELS = {
    "llama": ("llama", {"attention_bias": True, "num_hidden_layers": 2}),
    "qwen3 moe": ("qwen3_moe", {**tiny.QWEN3_MOE, "num_hidden_layers": 2}),
    "gpt-oss": ("gpt_oss", {**tiny.GPT_OSS, "num_hidden_layers": 2}),
    "gemma 4 moe": (
        "gemma4",
        {**tiny.GEMMA4_MOE, "num_hidden_layers": 2,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen3.5 moe": (
        "qwen3_5_moe",
        {**tiny.QWEN3_5_MOE, "num_hidden_layers": 2,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
}  # fmt: skip
GIB = 1 << 30


def own_memory(nbytes: int):
    return CpuDevice().host_memory(nbytes)


def apart(nbytes: int):
    """The device sees nothing but NaN where the host has put weights."""
    kept, _ = own_memory(nbytes)
    return kept, torch.full((nbytes,), 255, dtype=torch.uint8)


def host_of(spec, experts: int, layers: int, memory=own_memory, device="cpu") -> HostWeights:
    held = held_weights(spec, {}, "bfloat16", frozenset())
    return HostWeights(placed(spec, held, experts, layers).params, device, memory)


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    family, changes = MODELS[request.param]
    reference = tiny.make(family, **changes)
    reference.save_pretrained(tmp_path)
    return tmp_path, reference


def many(driver: Driver) -> torch.Tensor:
    """Logits of a prompt in one step, and of steps of one and two tokens behind it."""
    ids = tiny.random_ids(24)
    steps = [driver.step({"a": ids[:20]})["a"]]
    steps += [driver.step({"a": [ids[20 + i]], "b": [ids[i]]})["a"] for i in range(4)]
    return torch.cat(steps)


def test_logits_are_those_of_the_whole_model(folder):
    path, reference = folder
    whole = tiny.load(path, dtype=torch.bfloat16)
    first, *_, last = placements(whole.spec)[1:]
    found = many(Driver(tiny.load(path, device=host_of(whole.spec, *last))))
    expected = tiny.reference_logits(reference, tiny.random_ids(24))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    expected = many(Driver(whole))
    for step in (first, last):
        host = host_of(whole.spec, *step)
        model = tiny.load(path, dtype=torch.bfloat16, device=host)
        assert host.nbytes > 0
        assert torch.equal(many(Driver(model)), expected)


@pytest.mark.parametrize("flags", [{"n_cpu_moe": 1}, {"n_gpu_layers": 1}, {"n_cpu_moe": "all"}])
def test_bytes_are_those_of_the_plan(folder, flags):
    path, _ = folder
    checkpoint = open_model(path).checkpoint
    config = EngineConfig(
        model=ModelConfig(str(path), dtype="float32"), device=DeviceConfig("cuda", **flags)
    )
    facts = DeviceFacts("cuda", 64 * GIB, 64 * GIB, 1, host_memory=8 * GIB)
    spec = tiny.load(path).spec
    plan = resolve(config, spec, checkpoint.tensors, facts).plan
    host = HostWeights(plan.placement.params, "cpu", own_memory)
    model = tiny.load(path, device=host)
    assert host.nbytes == plan.placement.nbytes
    assert host.staging_bytes == plan.placement.staging
    assert model.nbytes - host.nbytes == plan.weights
    moves = "n_gpu_layers" in flags or any(layer.experts for layer in spec.layers)
    assert (host.nbytes > 0) == moves


def test_matrices_are_copied_and_a_few_tokens_read_experts_where_they_are(tmp_path):
    tiny.make("qwen3_moe", **tiny.QWEN3_MOE).save_pretrained(tmp_path)
    spec = tiny.load(tmp_path).spec
    ids = tiny.random_ids(24)
    whole = Driver(tiny.load(tmp_path)).run(ids, 24)
    model = tiny.load(tmp_path, device=host_of(spec, 0, len(spec.layers), apart))
    # 8 experts, 3 to a token: from 6 tokens on all are copied.
    assert torch.equal(Driver(model).run(ids, 24), whole)
    found = Driver(model).run(ids[:6], 6)
    assert torch.isfinite(found).all()
    assert Driver(model).run(ids[:5], 5).isnan().all()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_keeps_its_own_part(tmp_path, rank):
    tiny.make("qwen3_moe", **tiny.QWEN3_MOE).save_pretrained(tmp_path)
    spec = tiny.load(tmp_path).spec
    host = host_of(spec, 3, 3)
    part = tiny.load(tmp_path, device=host, parallel=Parallel(rank, 2))
    whole = tiny.load(tmp_path, parallel=Parallel(rank, 2))
    assert host.nbytes > 0 and part.nbytes == whole.nbytes
    for found, expected in zip(part.modules(), whole.modules(), strict=True):
        if isinstance(found, WeightedLayer) and found.host is host:
            (fetched,) = host.fetched(found.format)
            for one, other in zip(tensors_of(fetched), tensors_of(expected.format), strict=True):
                assert torch.equal(one, other)


def test_captured_steps(tmp_path):
    tiny.make("qwen3_moe", **tiny.QWEN3_MOE).save_pretrained(tmp_path)
    spec = tiny.load(tmp_path).spec
    model = tiny.load(tmp_path, device=host_of(spec, 2, 1))
    eager, captured = Driver(tiny.load(tmp_path)), Driver(model)
    steps = capture(captured, 4)
    prompts = {f"r{i}": tiny.random_ids(3 + i, seed=i) for i in range(4)}
    for driver in (eager, captured):
        driver.step(prompts)
    for count in (1, 3, 4):
        step = {f"r{i}": [7 + i] for i in range(count)}
        expected = torch.cat(list(eager.step(step).values()))
        logits, _ = replay(steps, captured, step)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_what_is_in_the_hosts_memory_stays_there_in_sleep(tmp_path):
    tiny.make("qwen3_moe", **tiny.QWEN3_MOE).save_pretrained(tmp_path)
    spec = tiny.load(tmp_path).spec
    host = host_of(spec, 2, 1)
    model = tiny.load(tmp_path, device=host)
    expected = many(Driver(model))
    kept = {id(memory): memory.clone() for memory in host._kept.values()}
    away = OffloadedTensors(tensors_of(model))
    assert model.norm.weight.untyped_storage().nbytes() == 0
    assert host._staging.untyped_storage().nbytes() == 0
    for memory in host._kept.values():
        assert torch.equal(memory, kept[id(memory)])
    away.restore()
    assert torch.equal(many(Driver(model)), expected)
