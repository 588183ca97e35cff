"""Start-ups of vLLM that were logged: weights, blocks, tokens and concurrency."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.planner.devices.gpus import find_gpus
from pagoda.planner.vllm.activations import graph_count, profiled_encoder
from pagoda.planner.vllm.cache import pool
from pagoda.planner.vllm.plan import VllmPlan, plan_vllm
from pagoda.planner.vllm.setup import VllmSetup, resolved
from pagoda.weights.checkpoint import TensorInfo
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B
from tests.unit.planner import published

GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """Numbers as the log has them, GiB; `available` is rounded to 0.01."""

    model: ModelSpec | dict[str, Any]
    gpu: str
    version: str
    weights: float
    available: float
    tokens: int
    concurrency: str
    flags: dict[str, Any] = field(default_factory=dict)
    block: int = 16
    """Tokens that the least step of the pool is."""
    within: float = 0.02
    """Bound of the memory for KV, planned without the log."""

    @property
    def spec(self) -> ModelSpec:
        return spec_for(self.model, {}, ())

    @property
    def setup(self) -> VllmSetup:
        gpu, _ = find_gpus(self.gpu)
        return VllmSetup(self.version, gpu.memory, gpu.capability, **self.flags)

    def plan(self) -> VllmPlan:
        return plan_vllm(self.spec, {}, self.setup, self.model)


CASES = {
    "A1": Case(
        published.GPT_OSS_20B, "A100-80G", "0.19.0", 13.72, 36.56, 798_624, "11.99",
        {"gpu_memory_utilization": 0.65, "max_model_len": 131072},
    ),
    "A2": Case(
        GEMMA4_26B_A4B, "A100-80G", "0.19.0", 48.5, 21.5, 93_936, "6.96",
        {"max_model_len": 131072, "enforce_eager": True},
    ),
    "B1": Case(
        published.QWEN3_VL_30B, "3090", "0.11.0", 14.7708, 2.31, 100_752, "1.54",
        {"max_model_len": 65536, "tensor_parallel": 4, "gpu_memory_utilization": 0.9},
        within=0.10,
    ),
    "D1": Case(
        published.R1_DISTILL_7B, "V100-32G", "0.7.1", 14.2717, 12.80, 14_984 * 16, "117.06",
        {"max_model_len": 2048, "dtype": "half", "gpu_memory_utilization": 0.9},
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_weights_are_within_a_thousandth_of_the_log(case):
    weights = case.plan().weights
    assert weights.low == weights.high
    assert weights.likely / GIB == pytest.approx(case.weights, rel=0.001)


@each_case
def test_tokens_follow_from_the_logged_memory(case):
    run = resolved(case.setup, case.spec, case.model)
    low, high = (
        pool(case.spec, run, int((case.available + error) * GIB)) for error in (-0.005, 0.005)
    )
    assert low.tokens - case.block <= case.tokens <= high.tokens + case.block
    assert low.concurrency <= float(case.concurrency) + 0.005
    assert high.concurrency >= float(case.concurrency) - 0.005


@each_case
def test_concurrency_follows_from_the_logged_tokens(case):
    run = resolved(case.setup, case.spec, case.model)
    one = pool(case.spec, run, 0)
    blocks = case.tokens // one.block * len(one.groups)
    found = pool(case.spec, run, blocks * one.block_bytes)
    assert found.tokens == case.tokens
    assert f"{found.concurrency:.2f}" == case.concurrency


@each_case
def test_memory_for_kv_is_foretold_without_the_log(case):
    plan = case.plan()
    assert plan.available.likely / GIB == pytest.approx(case.available, rel=case.within)
    assert plan.available.low < case.available * GIB < plan.available.high
    assert plan.pool.tokens == pytest.approx(case.tokens, rel=case.within)
    assert plan.pool_range[0].tokens < case.tokens < plan.pool_range[1].tokens
    assert plan.fits


def test_blocks_of_the_hosts_memory_are_those_of_the_log():
    assert CASES["D1"].plan().pool.lines()[0].endswith("# CPU blocks: 4681")


@pytest.mark.parametrize(("name", "gib"), [("A1", 0.69), ("B1", 1.92), ("D1", 0.80)])
def test_graphs_lie_within_their_bounds(name, gib):
    graphs = CASES[name].plan().graphs
    assert graphs.low <= gib * GIB <= graphs.high


@pytest.mark.parametrize(("name", "count"), [("A1", 83 + 35), ("B1", 67 + 35), ("D1", 35)])
def test_graphs_are_as_many_as_logged(name, count):
    case = CASES[name]
    assert graph_count(case.spec, resolved(case.setup, case.spec, case.model)) == count


@pytest.mark.parametrize(
    ("name", "budget", "gib"), [("A2", 2496, 0.0), ("B1", 153_600, 2.6), ("D1", None, 0.0)]
)
def test_the_encoders_budget_is_the_logged_one(name, budget, gib):
    case = CASES[name]
    run = resolved(case.setup, case.spec, case.model)
    encoder = profiled_encoder(case.spec, run)
    assert (encoder and encoder.budget) == budget
    if gib:
        # What it keeps, with an item's own outputs and pixels.
        kept = (encoder.budget + encoder.item_tokens) * encoder.output_size * 2
        assert kept / GIB == pytest.approx(gib, abs=0.1)


def test_graphs_that_may_exceed_the_headroom_are_noted():
    assert "leaves 2.36 GiB" in " ".join(CASES["B1"].plan().notes)
    assert not any("leaves" in note for note in CASES["A1"].plan().notes)


@pytest.mark.parametrize(
    ("model", "version", "flags", "logged"),
    [
        (published.GPT_OSS_120B, "0.11", {"capability": (8, 0)}, 65.9651),  # by Marlin
        (published.GPT_OSS_120B, "0.14", {"capability": (9, 0)}, 64.38),  # by Triton
        (published.QWEN3_8B, "0.24", {}, 15.27),
        (published.QWEN3_30B, "0.8.5", {"tensor_parallel": 4}, 14.2474),
    ],
)
def test_weights_in_public_logs(model, version, flags, logged):
    spec = spec_for(model, {}, ())
    plan = plan_vllm(spec, {}, VllmSetup(version, 80 * GIB, **flags), model)
    assert plan.weights.likely / GIB == pytest.approx(logged, rel=0.001)


def test_a_whole_start_in_a_public_log():
    """Qwen3-8B on an RTX 5090, vLLM 0.24: 89,040 tokens."""
    spec, gpu = spec_for(published.QWEN3_8B, {}, ()), find_gpus("5090")[0]
    setup = VllmSetup("0.24", gpu.memory, gpu.capability, max_model_len=32768)
    plan = plan_vllm(spec, {}, setup, published.QWEN3_8B)
    assert plan.pool.tokens == pytest.approx(89_040, rel=0.02)


QWEN36 = {
    "version": "0.21.0", "total": round(21.67 * GIB), "capability": (7, 5), "tensor_parallel": 2,
    "dtype": "half", "kv_cache_dtype": "fp8", "max_model_len": 262144, "max_num_seqs": 1,
    "max_num_batched_tokens": 8192, "mamba_align": True, "speculative_tokens": 3,
}  # fmt: skip


def test_blocks_are_made_as_large_as_a_recurrent_state():
    """E1, E2: blocks of 1600 tokens, states padded by 0.25%."""
    spec = spec_for(published.QWEN36_27B, {}, ())
    found = pool(spec, resolved(VllmSetup(**QWEN36), spec, published.QWEN36_27B), 4 * GIB)
    assert found.block == 1600
    assert found.state_bytes == 1_634_304
    assert f"{found.state_padding:.2%}" == "0.25%"
    # 17 layers of attention with the one that drafts, and three groups of 16 with states.
    assert sorted(len(group.layers) for group in found.groups) == [16, 16, 16, 17]


@pytest.mark.parametrize(
    ("blocks", "drafted", "length", "tokens", "concurrency"),
    [
        (424, 3, 262144, 620_944, "2.37"),
        (425, 3, 262144, 622_408, "2.37"),
        (208, 0, 131072, 302_921, "2.31"),  # blocks of 1568
    ],
)
def test_tokens_of_recurrent_models_in_public_logs(blocks, drafted, length, tokens, concurrency):
    """Qwen3.6-27B and its successor on two RTX 3090, vLLM 0.21 and later."""
    spec = spec_for(published.QWEN36_27B, {}, ())
    setup = VllmSetup(**{**QWEN36, "speculative_tokens": drafted, "max_model_len": length})
    run = resolved(setup, spec, published.QWEN36_27B)
    found = pool(spec, run, blocks * pool(spec, run, 0).block_bytes)
    assert (found.num_blocks, found.tokens) == (blocks, tokens)
    assert f"{found.concurrency:.2f}" == concurrency


def test_tokens_of_gemma_in_a_public_log():
    """Gemma 4 31B on a GB10, vLLM 0.21 or later: 58,441 blocks are 1,563,739 tokens, 5.97x."""
    setup = VllmSetup("0.21", 100 * GIB, max_model_len=262144, max_num_batched_tokens=4096)
    spec = spec_for(GEMMA4_31B, {}, ())
    run = resolved(setup, spec, None)
    one = pool(spec, run, 0)
    found = pool(spec, run, 58_441 * one.block_bytes)
    assert found.tokens == 1_563_739
    assert f"{found.concurrency:.2f}" == "5.97"
    # Five groups with windows, and a global one whose blocks hold twice as many tokens.
    assert sorted(group.cache.block for group in found.groups) == [16, 16, 16, 16, 16, 32]


def test_int4_weights_are_the_headers_share_and_the_tables():
    """E1: a checkpoint of 25.03 GiB, 12.65 GiB on each of two ranks."""
    config = {
        **published.QWEN36_27B,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128,
                                "zero_point": True, "version": "gemm"},
    }  # fmt: skip
    spec = spec_for(config, {}, ())
    nbytes = round(25.03 * GIB)
    header = {"all": TensorInfo("all", (nbytes // 4,), "I32", nbytes)}
    plan = plan_vllm(spec, header, VllmSetup(**QWEN36), config)
    assert plan.weights.likely / GIB == pytest.approx(12.65, rel=0.005)
    guessed = plan_vllm(spec, {}, VllmSetup(**QWEN36), config)
    assert guessed.weights.low < plan.weights.likely < guessed.weights.high
    assert "guessed" in guessed.notes[0]


def test_fp8_checkpoints_get_marlins_scales_on_older_gpus():
    config = {
        **published.QWEN3_8B,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    spec, name = spec_for(config, {}, ()), "model.layers.0.mlp.down_proj.weight"
    nbytes = 4096 * 12288
    header = {
        name: TensorInfo(name, (4096, 12288), "F8_E4M3", nbytes),
        name + "_scale_inv": TensorInfo(name + "_scale_inv", (32, 96), "BF16", 2 * 32 * 96),
    }
    sizes = [
        plan_vllm(spec, header, VllmSetup("0.19", 80 * GIB, cc), config).weights.likely
        for cc in ((8, 9), (8, 6))
    ]
    # A 16-bit scale for each output and 128 inputs, rounded up by the allocator.
    assert sizes[1] - sizes[0] == pytest.approx(nbytes // 128 * 2, abs=1 << 20)


def test_towers_come_from_the_spec_or_the_headers_or_are_missed():
    setup = CASES["A2"].setup
    seeing = spec_for(GEMMA4_26B_A4B, {}, ())
    spec = replace(seeing, vision=None, ignored_weights=("model.vision_tower.*",))
    shape = (27, 1152, 4304)
    header = {"model.vision_tower.x": TensorInfo("model.vision_tower.x", shape, "BF16", 0)}
    without = plan_vllm(spec, {}, setup)
    assert "vision tower" in without.notes[0]
    named = plan_vllm(spec, header, setup)
    assert named.weights.likely - without.weights.likely == pytest.approx(
        2 * 27 * 1152 * 4304, abs=2 << 20
    )
    known = plan_vllm(seeing, {}, setup, GEMMA4_26B_A4B)
    # 27 layers of 4 * 1152^2 and 3 * 1152 * 4304, patches, positions and the projection.
    numbers = 27 * (4 * 1152**2 + 3 * 1152 * 4304) + 1152 * (768 + 2 * 10240 + 2816)
    added = known.weights.likely - without.weights.likely
    assert added == pytest.approx(2 * numbers, rel=0.02)
    assert not any("vision tower" in note for note in (*named.notes, *known.notes))
