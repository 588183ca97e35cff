"""What must hold of any model and any flags."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.planner.vllm.cache import pool, pool_bytes
from pagoda.planner.vllm.plan import plan_vllm
from pagoda.planner.vllm.setup import VERSIONS, VllmSetup, resolved, stage_layers, version_of
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_E2B
from tests.unit.planner import published

GIB = 1 << 30
MODELS: dict[str, ModelSpec] = {
    "gpt-oss": spec_for(published.GPT_OSS_20B, {}, ()),
    "gemma": spec_for(GEMMA4_26B_A4B, {}, ()),
    "gemma e": spec_for(GEMMA4_E2B, {}, ()),
    "qwen-vl": spec_for(published.QWEN3_VL_2B, {}, ()),
    "qwen3.6": spec_for(published.QWEN36_27B, {}, ()),
    "llama": spec_for(published.LLAMA31_8B, {}, ()),
}


def thinned(spec: ModelSpec, layers: int) -> ModelSpec:
    """With its first layers only, so that many plans are quick."""
    return replace(spec, layers=spec.layers[: min(layers, len(spec.layers))])


setups = st.builds(
    VllmSetup,
    version=st.sampled_from(["0.7", "0.11", "0.19", "0.21", "0.32"]),
    total=st.sampled_from([16, 24, 80, 141]).map(lambda gib: gib * GIB),
    capability=st.sampled_from([(7, 0), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 3]),
    quantization=st.sampled_from(["auto", "none"]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8", "int8_per_token_head"]),
    max_model_len=st.integers(16, 131072),
    max_num_seqs=st.none() | st.integers(1, 1024),
    max_num_batched_tokens=st.none() | st.integers(64, 16384),
    gpu_memory_utilization=st.none() | st.floats(0.3, 1.0),
    enforce_eager=st.booleans(),
    speculative_tokens=st.sampled_from([0, 3]),
    mamba_align=st.booleans(),
)
specs = st.builds(thinned, st.sampled_from(list(MODELS.values())), st.integers(6, 24))


@given(spec=specs, setup=setups)
@settings(max_examples=120, deadline=None)
def test_any_plan_adds_up(spec, setup):
    try:
        plan = plan_vllm(spec, {}, setup)
    except ConfigError as error:
        assert "one pool" in str(error)  # pages that old versions cannot unify
        return
    room = plan.available
    assert room.low <= room.likely <= room.high
    for row in plan.rows():
        estimate = row.estimate
        assert 0 <= estimate.low <= estimate.likely <= estimate.high, row
        assert (row.exactness == "exact") == isinstance(row.bytes, int)
    least, most = plan.pool_range
    assert least.num_blocks <= plan.pool.num_blocks <= most.num_blocks
    assert plan.fits == (plan.pool.concurrency >= 1)
    assert plan.fits == ("will not start" not in plan.problem)
    assert plan.pool.num_blocks * plan.pool.block_bytes <= max(0, room.likely)


@given(spec=specs, setup=setups, share=st.integers(1, 64))
@settings(max_examples=100, deadline=None)
def test_memory_and_context_invert_each_other(spec, setup, share):
    try:
        run = resolved(replace(setup, pipeline=1), spec, None)
        needed = [pool_bytes(spec, run, length) for length in range(1, run.length, 997)]
        nbytes = pool_bytes(spec, run, run.length) * share // 64
    except ConfigError:
        return
    assert needed == sorted(needed)
    longest = pool(spec, run, nbytes).largest_context
    if longest:
        assert pool_bytes(spec, run, longest) <= nbytes
    if longest < run.length:
        assert pool_bytes(spec, run, longest + 1) > nbytes


@given(spec=specs, setup=setups)
@settings(max_examples=60, deadline=None)
def test_more_of_anything_costs_no_less(spec, setup):
    base = replace(setup, tensor_parallel=1, pipeline=1)
    try:
        plan = plan_vllm(spec, {}, base)
        split = plan_vllm(spec, {}, replace(base, tensor_parallel=2))
        staged = plan_vllm(spec, {}, replace(base, pipeline=2))
        wider = plan_vllm(spec, {}, replace(base, max_num_seqs=2 * plan.run.requests))
        larger = plan_vllm(spec, {}, replace(base, total=2 * base.total))
    except ConfigError:
        return
    assert split.weights.likely < plan.weights.likely
    assert split.activations.likely <= plan.activations.likely
    assert split.pool.num_blocks >= plan.pool.num_blocks
    assert staged.weights.likely < plan.weights.likely
    assert wider.activations.likely >= plan.activations.likely
    if (larger.run.tokens, larger.run.requests) == (plan.run.tokens, plan.run.requests):
        assert larger.pool.num_blocks >= plan.pool.num_blocks


@pytest.mark.parametrize("name", MODELS)
def test_fewer_key_value_heads_than_ranks_are_repeated(name):
    spec = MODELS[name]
    if name == "qwen3.6":
        spec = replace(spec, layers=spec.layers[:8])
    sizes = []
    for ranks in (1, 2, 4, 8):
        run = resolved(VllmSetup("0.19", 80 * GIB, tensor_parallel=ranks), spec, None)
        sizes.append(pool_bytes(spec, run, 4096))
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(ConfigError, match="does not divide"):
        resolved(VllmSetup("0.19", 80 * GIB, tensor_parallel=7), spec, None)


def test_fp8_halves_linear_layers_alone():
    spec = MODELS["llama"]
    plain = plan_vllm(spec, {}, VllmSetup("0.19", 80 * GIB)).weights.likely
    tables = 2 * 2 * 128256 * 4096
    for capability, scale in (((8, 0), 2), ((8, 9), 0)):
        setup = VllmSetup("0.19", 80 * GIB, capability, quantization="fp8")
        halved = plan_vllm(spec, {}, setup).weights.likely
        rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096) * scale
        assert halved == pytest.approx((plain - tables) / 2 + tables + rows, rel=0.003)


def test_stages_get_layers_as_vllm_deals_them():
    assert stage_layers(30, 4) == [range(0, 7), range(7, 15), range(15, 23), range(23, 30)]
    assert [len(stage) for stage in stage_layers(7, 2)] == [4, 3]


def test_versions_hold_up_to_the_next():
    assert version_of("0.7.1") is VERSIONS["0.7"]
    assert version_of("0.18.2") is VERSIONS["0.11"]
    assert version_of("v0.20.0") is VERSIONS["0.19"]
    assert version_of("1.0") is VERSIONS["0.21"]
    for wrong in ("0.6.3", "latest", "", "0"):
        with pytest.raises(ConfigError, match=r"0\.19"):
            version_of(wrong)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"gpu_memory_utilization": 1.2}, "utilization"),
        ({"gpu_memory_utilization": 0.0}, "utilization"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"pipeline": 64}, "pipeline"),
        ({"dtype": "int8"}, "int8"),
        ({"kv_cache_dtype": "int3"}, "int3"),
        ({"quantization": "awq"}, "not quantized"),
    ],
)
def test_flags_that_vllm_refuses(flags, said):
    with pytest.raises(ConfigError, match=said):
        plan_vllm(MODELS["llama"], {}, VllmSetup("0.19", 80 * GIB, **flags))


def test_a_model_that_does_not_fit_says_the_longest_context_that_does():
    setup = VllmSetup("0.19", 24 * GIB, max_model_len=131072)
    plan = plan_vllm(MODELS["llama"], {}, setup)
    assert not plan.fits
    longest = plan.pool.largest_context
    assert f"--max-model-len {longest} fits" in plan.problem
    assert plan_vllm(MODELS["llama"], {}, replace(setup, max_model_len=longest)).fits
    assert not plan_vllm(MODELS["llama"], {}, replace(setup, max_model_len=longest + 16)).fits
    none = plan_vllm(MODELS["llama"], {}, replace(setup, total=12 * GIB))
    assert "more GPUs" in none.problem
