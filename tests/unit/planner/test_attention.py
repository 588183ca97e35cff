"""Which kernels attend to the cache, and what is said of the others."""

from dataclasses import replace

import pytest

from pagoda.arch.spec import AttentionSpec, RopeSpec
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.core.kvcache.spec import KVLayout
from pagoda.planner.attention import AttentionChoice, choose_attention, kind_of, why_not
from pagoda.planner.resolve import resolve
from tests.unit.planner.test_resolve import GIB, configure, machine, smollm2

WINDOW = AttentionSpec("sliding", 8, 2, 64, 0.125, RopeSpec(1e4, 64), window=128, sinks=True)


LIBRARIES = frozenset(("flash-attn", "flashinfer"))


def gpu(capability: int, libraries: frozenset[str] = frozenset()) -> DeviceFacts:
    return DeviceFacts(
        "cuda", 24 * GIB, 24 * GIB, 4, name="GPU", capability=capability,
        attention_libraries=libraries,
    )  # fmt: skip


def chosen(wanted: str = "auto", facts: DeviceFacts | None = None, dtype: str = "float16"):
    spec = smollm2(layers=2)
    spec = replace(spec, layers=(*spec.layers, replace(spec.layers[0], mixer=WINDOW)))
    reasons = []
    choice = choose_attention(spec, wanted, dtype, gpu(90) if facts is None else facts, reasons)
    return choice, [reason.why for reason in reasons]


def test_each_kind_of_layer_has_a_reason():
    choice, (full, window) = chosen()
    assert choice == AttentionChoice(KVLayout("tokens", 64), "triton")
    assert full.startswith("2 layers with full attention, heads of 64;")
    assert window.startswith("1 layers with a window of 128 tokens, heads of 64, sinks;")
    for words in (full, window):
        assert "not flash-attn or flashinfer: it is not installed" in words
        assert "not torch: it is slower" in words


def test_turing_is_told_calmly():
    choice, (full, _) = chosen(facts=gpu(75, LIBRARIES))
    assert choice.names == ("triton",)
    assert "prompts by torch" in full
    assert "not flashinfer: it is made for sm_80 and later, and this GPU is an sm_75" in full
    for alarming in ("error", "fail", "warn", "cannot", "unsupported"):
        assert alarming not in full.lower()


def test_a_cpu_has_nothing_to_choose():
    assert chosen(facts=machine()) == (AttentionChoice(KVLayout("dimensions", 16), "native"), [])
    assert chosen("torch", machine())[0].names == ("torch",)
    with pytest.raises(ConfigError, match="NVIDIA GPUs"):
        chosen("triton", machine())


@pytest.mark.parametrize(
    ("wanted", "capability", "dtype", "why"),
    [
        ("flashinfer", 90, "bfloat16", "it has no sinks"),
        ("flash-attn", 80, "bfloat16", "it is made for sm_90 and sm_100"),
        ("flash-attn", 90, "float32", "not in float32"),
        ("flashinfer", 75, "float16", "sm_80 and later"),
        ("triton", 75, "bfloat16", "bfloat16 needs sm_80"),
    ],
)
def test_what_cannot_serve_is_refused_with_its_reason(wanted, capability, dtype, why):
    with pytest.raises(ConfigError, match=f"--attention-backend {wanted} .*{why}"):
        chosen(wanted, gpu(capability, LIBRARIES), dtype)


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_libraries_cap_no_logits(library):
    mixer = replace(WINDOW, sinks=False)
    facts = gpu(90, LIBRARIES)
    assert why_not(library, mixer, "float16", facts) is None
    capped = replace(mixer, logit_cap=50.0)
    assert why_not(library, capped, "float16", facts) == "it does not cap logits here"
    assert why_not("triton", capped, "float16", facts) is None
    assert kind_of(capped) == "a window of 128 tokens, heads of 64, capped logits"


def test_torch_takes_what_triton_declines():
    assert chosen(facts=gpu(75), dtype="bfloat16")[0].names == ("torch",)


@pytest.mark.parametrize(
    ("capability", "first"),
    [(75, "triton"), (80, "flashinfer"), (90, "flash-attn"), (100, "flash-attn")],
)
def test_each_kind_of_layer_gets_the_first_that_serves_it(capability, first):
    choice, whys = chosen(facts=gpu(capability, LIBRARIES))
    full, window = smollm2().layers[0].mixer, WINDOW
    assert (choice.of(full), choice.of(window)) == (first, "triton")
    assert choice.captured and len(whys) == 2
    if first != "triton":
        assert "it has no sinks" in whys[1] or "has no sinks" in whys[1]


@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({}, {}, None),
        ({"chunked": True, "window": 64}, {}, "no chunks"),
        ({"head_dim": 80}, {}, "these 80"),
        ({"window": 64, "both_ways": True}, {}, "picture"),
        ({}, {"kv_dtype": "int8"}, "cache of int8"),
        ({}, {"kv_dtype": "float16"}, None),
    ],
)
@pytest.mark.parametrize(("backend", "capability"), [("flash-attn", 90), ("flashinfer", 80)])
def test_external_kernels_say_what_they_lack(backend, capability, changes, how, why):
    mixer = replace(WINDOW, sinks=False, **changes)
    found = why_not(backend, mixer, "float16", gpu(capability, LIBRARIES), **how)
    assert found is None if why is None else why in found


def test_a_block_size_that_is_asked_for_stays():
    for facts, size in ((gpu(90), 64), (machine(), 16)):
        asked = configure(cache={"block_size": 32})
        for config, expected in ((configure(), size), (asked, 32)):
            resolution = resolve(config, smollm2(), {}, facts)
            assert resolution.config.cache.block_size == expected
            assert {group.block_size for group in resolution.plan.groups} == {expected}


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
