"""Which kernels attend to the cache, and what is said of the others."""

from dataclasses import replace

import pytest

from pagoda.arch.spec import AttentionSpec, RopeSpec
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.planner.attention import choose_attention
from pagoda.planner.resolve import resolve
from tests.unit.planner.test_resolve import GIB, configure, machine, smollm2

WINDOW = AttentionSpec("sliding", 8, 2, 64, 0.125, RopeSpec(1e4, 64), window=128, sinks=True)


def gpu(capability: int) -> DeviceFacts:
    return DeviceFacts("cuda", 24 * GIB, 24 * GIB, 4, name="GPU", capability=capability)


def chosen(wanted: str = "auto", facts: DeviceFacts | None = None, dtype: str = "float16"):
    spec = smollm2(layers=2)
    spec = replace(spec, layers=(*spec.layers, replace(spec.layers[0], mixer=WINDOW)))
    reasons = []
    backend = choose_attention(spec, wanted, dtype, gpu(90) if facts is None else facts, reasons)
    return backend, [reason.why for reason in reasons]


def test_each_kind_of_layer_has_a_reason():
    backend, (full, window) = chosen()
    assert backend == "triton"
    assert full.startswith("2 layers with full attention, heads of 64;")
    assert window.startswith("1 layers with a window of 128 tokens, heads of 64, sinks;")
    for words in (full, window):
        assert "not flashinfer or flash-attn: it reads a token's key as one row" in words
        assert "not torch: it is slower" in words


def test_turing_is_told_calmly():
    backend, (full, _) = chosen(facts=gpu(75))
    assert backend == "triton"
    assert "prompts by torch" in full
    assert "not flash-attn: it is made for sm_80 and later, and this GPU is an sm_75" in full
    for alarming in ("error", "fail", "warn", "cannot", "unsupported"):
        assert alarming not in full.lower()


def test_a_cpu_has_nothing_to_choose():
    assert chosen(facts=machine()) == ("native", [])
    assert chosen("torch", machine())[0] == "torch"
    with pytest.raises(ConfigError, match="NVIDIA GPUs"):
        chosen("triton", machine())


@pytest.mark.parametrize(
    ("wanted", "capability", "dtype", "why"),
    [
        ("flashinfer", 90, "bfloat16", "a copy of them at each step"),
        ("flash-attn", 90, "bfloat16", "a copy of them at each step"),
        ("flash-attn", 75, "float16", "sm_80 and later"),
        ("triton", 75, "bfloat16", "bfloat16 needs sm_80"),
    ],
)
def test_what_cannot_serve_is_refused_with_its_reason(wanted, capability, dtype, why):
    with pytest.raises(ConfigError, match=f"--attention-backend {wanted} .*{why}"):
        chosen(wanted, gpu(capability), dtype)


def test_torch_takes_what_triton_declines():
    assert chosen(facts=gpu(75), dtype="bfloat16")[0] == "torch"


@pytest.mark.parametrize(
    ("changes", "captures"),
    [
        ({}, True),
        ({"device": {"enforce_eager": True}}, False),
        ({"device": {"attention_backend": "torch"}}, False),
        ({"parallel": {"tensor_parallel_size": 3}}, True),
    ],
)
def test_memory_is_planned_for_captured_steps_where_there_are_any(changes, captures):
    resolution = resolve(configure(**changes), smollm2(), {}, gpu(90))
    plan = resolution.plan
    assert (plan.captured > 0) == captures
    run = plan.activations + plan.process + plan.captured + plan.tables
    assert plan.total == plan.weights + run + plan.kv_pool
    assert ("captured steps" in [row["item"] for row in plan.rows()]) == captures
    assert resolve(configure(), smollm2(), {}, machine()).plan.captured == 0
