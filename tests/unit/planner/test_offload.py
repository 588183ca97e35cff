"""What goes into the host's memory: bytes are counted by hand here."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.planner.resolve import refit, resolve

MIB, GIB = 1 << 20, 1 << 30
LAYERS, HIDDEN, VOCAB = 12, 2048, 32000
ATTENTION = AttentionSpec("full", 16, 4, 128, 0.1, RopeSpec(1e5, 128))
# Of a layer, in bf16.
MIXER = 2 * HIDDEN * (16 + 2 * 4) * 128 + 2 * HIDDEN * 16 * 128
MLP = 2 * 3 * HIDDEN * 8192
EXPERTS = 2 * 3 * HIDDEN * 768 * 64


def spec_of(layers: tuple[LayerSpec, ...]) -> ModelSpec:
    return ModelSpec(
        "LlamaForCausalLM", VOCAB, HIDDEN, layers, 1e-5, False, 32768, "bfloat16", ()
    )  # fmt: skip


DENSE = spec_of((LayerSpec(ATTENTION, MlpSpec(8192)),) * LAYERS)
# The first layer has none.
SPARSE = spec_of(
    (LayerSpec(ATTENTION, MlpSpec(8192)),)
    + (LayerSpec(ATTENTION, None, MoeSpec(64, 8, 768)),) * (LAYERS - 1)
)


def gpu(total: float, host: float | None = 256.0) -> DeviceFacts:
    """So many GiB, with so many of the host's beside it."""
    memory = None if host is None else int(host * GIB)
    return DeviceFacts(
        "cuda", int(total * GIB), int(total * GIB), 4, name="GPU", capability=90,
        host_memory=memory,
    )  # fmt: skip


def configure(length: int | None = None, **device) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig("m", max_model_len=length), device=DeviceConfig("cuda", **device)
    )


def plan_of(spec, facts, config=None):
    return resolve(config or configure(), spec, {}, facts).plan


def test_what_fits_stays_on_the_device():
    for spec in (DENSE, SPARSE):
        found = resolve(configure(), spec, {}, gpu(24))
        assert found.plan.placement.nbytes == found.plan.placement.staging == 0
        assert found.config.device.offload_gib == 0


@pytest.mark.parametrize("count", [0, 1, 5, 99])
def test_experts_of_some_layers(count):
    placement = plan_of(SPARSE, gpu(24), configure(n_cpu_moe=count)).placement
    layers = min(count, LAYERS - 1)
    assert (placement.experts, placement.layers) == (layers, 0)
    assert placement.nbytes == layers * EXPERTS
    assert placement.staging == (EXPERTS if layers else 0)
    names = {f"layers.{LAYERS - 1 - i}.mlp.{part}.weight" for i in range(layers)
             for part in ("gate_up", "down")}  # fmt: skip
    assert placement.params == names


def test_all_experts():
    config = configure(n_cpu_moe="all")
    assert plan_of(SPARSE, gpu(24), config).placement.nbytes == (LAYERS - 1) * EXPERTS
    assert plan_of(DENSE, gpu(24), config).placement.nbytes == 0


def test_layers():
    whole = plan_of(DENSE, gpu(24))
    for on_device in (LAYERS, LAYERS - 3, 0, 99, "all"):
        plan = plan_of(DENSE, gpu(24), configure(n_gpu_layers=on_device))
        moved = 0 if isinstance(on_device, str) else max(0, LAYERS - on_device)
        assert plan.placement.nbytes == moved * (MIXER + MLP)
        assert plan.placement.staging == (2 * MLP // 3 if moved else 0)  # gate and up are one
        assert plan.weights == whole.weights - plan.placement.nbytes
        assert plan.total - plan.kv_pool == (
            whole.total - whole.kv_pool - plan.placement.nbytes + plan.placement.staging
        )
    assert plan_of(SPARSE, gpu(24), configure(n_gpu_layers=LAYERS - 2)).placement.nbytes == (
        2 * (MIXER + EXPERTS)
    )
    both = configure(n_gpu_layers=LAYERS - 2, n_cpu_moe=5)
    assert plan_of(SPARSE, gpu(24), both).placement.nbytes == 2 * MIXER + 5 * EXPERTS


def test_a_budget_is_used_up_and_not_exceeded():
    for gib in (0, 1.5, 3):
        placement = plan_of(SPARSE, gpu(24), configure(cpu_offload_gb=gib)).placement
        assert placement.nbytes == int(gib * GIB) // EXPERTS * EXPERTS
    everything = plan_of(SPARSE, gpu(24), configure(cpu_offload_gb=1000.0)).placement
    assert everything.nbytes == LAYERS * MIXER + (LAYERS - 1) * EXPERTS + MLP


def test_flags_that_contradict_each_other():
    config = configure(cpu_offload_gb=1.0, n_cpu_moe=2)
    with pytest.raises(ConfigError, match="--cpu-offload-gb and --n-cpu-moe.*leave out one"):
        resolve(config, SPARSE, {}, gpu(24))


def test_a_flag_stays_as_it_is_set():
    """Nothing more goes into the host's memory than it says."""
    for config in (configure(cpu_offload_gb=0.0), configure(n_gpu_layers="all"),
                   configure(n_cpu_moe=1)):  # fmt: skip
        with pytest.raises(CapacityError, match="The model needs"):
            resolve(config, SPARSE, {}, gpu(3))


def test_a_small_device_gets_what_fits_and_says_why():
    for spec, total in ((DENSE, 2.5), (SPARSE, 4)):
        found = resolve(configure(), spec, {}, gpu(total))
        plan = found.plan
        assert plan.total <= total * GIB and plan.kv_tokens >= 4096
        (reason,) = (r for r in found.reasons if r.field == "cpu_offload_gb")
        assert reason.value == found.config.device.offload_gib
        assert "the device's is too small for all" in reason.why
        # As the flag, it asks for the same.
        again = resolve(configure(cpu_offload_gb=reason.value), spec, {}, gpu(total, None)).plan
        assert again.placement == plan.placement
    assert plan.placement.layers == 0 < plan.placement.experts < LAYERS - 1
    assert f"the experts of {plan.placement.experts} of {LAYERS} layers" in reason.why


def test_room_is_made_for_the_context_that_is_asked_for():
    short, long = (plan_of(DENSE, gpu(3.2), configure(length)) for length in (1024, 32768))
    assert long.placement.nbytes > short.placement.nbytes == 0
    assert long.kv_tokens >= long.max_model_len == 32768


def test_room_is_made_for_the_pool_that_is_asked_for():
    cache = CacheConfig(kv_cache_memory_bytes=2 * GIB)
    plan = plan_of(DENSE, gpu(4), replace(configure(), cache=cache))
    assert plan.placement.nbytes > 0 and plan.kv_pool > 1.9 * GIB and plan.total <= 4 * GIB


def test_what_neither_memory_holds_is_an_error():
    with pytest.raises(CapacityError, match="with 2.00 GiB of the host's memory beside it"):
        resolve(configure(), SPARSE, {}, gpu(3, 2))
    with pytest.raises(CapacityError, match="Free memory, choose a smaller"):
        resolve(configure(), SPARSE, {}, gpu(3, None))
    with pytest.raises(CapacityError, match="--n-cpu-moe puts 6.19 GiB of weights.*1.00 GiB"):
        resolve(configure(n_cpu_moe="all"), SPARSE, {}, gpu(24, 2))


def test_ranks_share_the_hosts_memory():
    config = configure(n_cpu_moe="all")
    two = replace(config, parallel=replace(config.parallel, tensor_parallel_size=2))
    half = plan_of(SPARSE, gpu(24, 8), two).placement
    assert half.nbytes == (LAYERS - 1) * EXPERTS // 2
    with pytest.raises(CapacityError, match="--n-cpu-moe"):
        resolve(two, SPARSE, {}, gpu(24, 7))


def test_on_a_cpu_the_flags_are_without_effect():
    facts = DeviceFacts("cpu", 24 * GIB, 24 * GIB, 4)
    config = EngineConfig(device=DeviceConfig("cpu", n_gpu_layers=99))
    found, plain = (resolve(c, DENSE, {}, facts) for c in (config, EngineConfig()))
    assert found.plan == plain.plan
    (reason,) = (r for r in found.reasons if r.field == "n_gpu_layers")
    assert "without effect" in reason.why


def test_a_measured_step_keeps_the_placement():
    config = configure()
    made = resolve(config, SPARSE, {}, gpu(3))
    again = refit(config, SPARSE, made, activations=100 * MIB, usable=1 * GIB)
    assert again.plan.placement == made.plan.placement
    assert again.plan.kv_pool <= 1 * GIB


@settings(max_examples=30)
@given(
    st.sampled_from([DENSE, SPARSE]),
    st.floats(0.8, 10),
    st.floats(0.8, 10),
    st.sampled_from([None, 512, 16384]),
    st.sampled_from([1.5, 3.0, 256.0]),
)
def test_a_smaller_device_leaves_more_to_the_host(spec, one, other, length, host):
    """And one that is larger fits what a smaller one does."""
    config, found = configure(length), []
    for total in sorted((one, other), reverse=True):
        try:
            found.append(plan_of(spec, gpu(total, host), config).placement.nbytes)
        except CapacityError:
            found.append(None)
    larger, smaller = found
    assert smaller is None or (larger is not None and larger <= smaller)


@settings(max_examples=15)
@given(st.sampled_from([DENSE, SPARSE]), st.floats(0.8, 4), st.sampled_from([1.5, 3.0, 256.0]))
def test_it_fits_where_any_choice_fits(spec, total, host):
    facts = gpu(total, host)
    try:
        resolve(configure(4096), spec, {}, facts)
    except CapacityError:
        for experts in range(LAYERS):
            for layers in (0, 1, LAYERS // 2, LAYERS):
                config = configure(4096, n_cpu_moe=experts, n_gpu_layers=LAYERS - layers)
                with pytest.raises(CapacityError):
                    resolve(config, spec, {}, facts)
