import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec, WeightRule
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.quantization import quantized_tensors
from pagoda.planner.resolve import resolve
from pagoda.planner.resolved import ResolvedSpeculation
from pagoda.weights.checkpoint import TensorInfo
from tests.models import tiny

GIB = 1 << 30


def smollm2(max_position: int = 8192, layers: int = 30) -> ModelSpec:
    attention = AttentionSpec("full", 9, 3, 64, 0.125, RopeSpec(1e5, 64))
    layer = LayerSpec(attention, MlpSpec(1536))
    return ModelSpec(
        "LlamaForCausalLM", 49152, 576, (layer,) * layers, 1e-5, True, max_position, "bfloat16", ()
    )  # fmt: skip


def machine(total: int = 24 * GIB, free: int | None = None, **changes) -> DeviceFacts:
    return DeviceFacts("cpu", total, total if free is None else free, 2, **changes)


def configure(**sections) -> EngineConfig:
    config = EngineConfig()
    for section, changes in sections.items():
        config = replace(config, **{section: replace(getattr(config, section), **changes)})
    return config


def test_the_default_model_has_its_known_size():
    assert parameter_count(smollm2()) == 134_515_008  # as its model card and transformers count


def test_defaults_on_a_laptop():
    resolution = resolve(EngineConfig(), smollm2(), {}, machine())
    config, plan = resolution.config, resolution.plan
    assert config.model.dtype == config.cache.kv_cache_dtype == "bfloat16"
    assert config.model.max_model_len == 8192
    assert config.device.threads == 2
    assert plan.weights == 2 * 134_515_008
    assert plan.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2
    assert plan.kv_pool <= 4 * GIB
    assert plan.kv_tokens >= 8192
    named = {reason.field for reason in resolution.reasons}
    assert {"dtype", "kv_cache_dtype", "threads", "max_num_seqs", "max_model_len"} <= named
    assert config.scheduler.max_step_growth == 2.2 and "max_step_ms" in named


def test_a_long_context_model_does_not_reserve_all_of_it_by_default():
    spec = smollm2(max_position=262_144)
    length = resolve(EngineConfig(), spec, {}, machine()).config.model.max_model_len
    assert length < 262_144
    assert length * 23_040 <= 4 * GIB
    wanted = configure(model={"max_model_len": "auto"})
    assert resolve(wanted, spec, {}, machine()).config.model.max_model_len == 262_144


def test_a_container_limit_shrinks_the_context():
    small = resolve(EngineConfig(), smollm2(), {}, machine(GIB + GIB // 10))
    assert 0 < small.config.model.max_model_len < 8192
    assert small.plan.total < GIB + GIB // 10


def test_what_does_not_fit_says_what_to_lower():
    with pytest.raises(CapacityError, match="lower --max-num-seqs"):
        resolve(EngineConfig(), smollm2(), {}, machine(GIB // 2))
    config = configure(model={"max_model_len": 8192}, cache={"kv_cache_memory_bytes": 64 << 20})
    with pytest.raises(CapacityError, match="lower --max-model-len to at most 2,896"):
        resolve(config, smollm2(), {}, machine())


@pytest.mark.parametrize("length", [1_000_000, 100_000_000])
def test_a_context_that_is_too_long_is_what_is_too_long(length):
    """Also where its tables by position alone are larger than the memory."""
    facts = machine(4 * GIB)
    with pytest.raises(CapacityError) as caught:
        resolve(configure(model={"max_model_len": length}), smollm2(), {}, facts)
    text = str(caught.value)
    assert f"One request of {length:,} tokens" in text and "for positions" in text
    assert "--block-size" not in text
    advised = int(
        text.partition("--max-model-len to at most ")[2].partition(", or")[0].replace(",", "")
    )
    assert advised == smollm2().max_position  # though more would fit
    resolve(configure(model={"max_model_len": advised}), smollm2(), {}, facts)


@pytest.mark.parametrize("length", [1_000_000, 100_000_000])
def test_the_longest_context_that_is_advised_just_fits(length):
    facts, spec = machine(4 * GIB), replace(smollm2(), max_position=1 << 30)
    with pytest.raises(CapacityError) as caught:
        resolve(configure(model={"max_model_len": length}), spec, {}, facts)
    text = str(caught.value)
    advised = int(
        text.partition("--max-model-len to at most ")[2].partition(", or")[0].replace(",", "")
    )
    for tokens, fits in ((advised, True), (advised + 1, False)):
        config = configure(model={"max_model_len": tokens})
        with nullcontext() if fits else pytest.raises(CapacityError):
            resolve(config, spec, {}, facts)


@pytest.mark.parametrize("length", [None, "auto", 16])
@pytest.mark.parametrize(
    ("cache", "advice"),
    [
        ({"kv_cache_memory_bytes": 1000}, "raise --kv-cache-memory-bytes"),
        ({"kv_cache_memory_bytes": 16 * 23_040}, "raise --kv-cache-memory-bytes"),
        ({"num_gpu_blocks_override": 1}, "raise --num-gpu-blocks-override"),
    ],
)
def test_a_cache_without_a_block_is_refused(length, cache, advice):
    config = configure(model={"max_model_len": length}, cache=cache)
    with pytest.raises(CapacityError, match=advice):
        resolve(config, smollm2(), {}, machine())


def test_a_number_of_blocks_must_hold_one_request():
    config = configure(model={"max_model_len": 8192}, cache={"num_gpu_blocks_override": 11})
    with pytest.raises(
        CapacityError, match=r"lower --max-model-len to at most 160, or raise --num"
    ):
        resolve(config, smollm2(), {}, machine())
    config = configure(cache={"num_gpu_blocks_override": 11})
    resolution = resolve(config, smollm2(), {}, machine())
    assert (resolution.config.model.max_model_len, resolution.plan.num_slabs) == (160, 11)


def test_a_pool_that_is_asked_for_must_be_free():
    free = 2 * GIB
    facts = machine(free=free)
    plan = resolve(EngineConfig(), smollm2(), {}, facts).plan
    rest = plan.total - plan.kv_pool
    # Neither the reserve nor the share of default pools counts.
    tight = configure(cache={"kv_cache_memory_bytes": free - rest, "gpu_memory_utilization": 0.01})
    assert resolve(tight, smollm2(), {}, facts).plan.kv_pool > free - rest - plan.slab_bytes
    room = (free - rest) >> 20
    wide = configure(cache={"kv_cache_memory_bytes": 30 * GIB})
    words = f"30.00 GiB of KV cache.*lower --kv-cache-memory-bytes to at most {room}M, or free"
    with pytest.raises(CapacityError, match=words):
        resolve(wide, smollm2(), {}, facts)
    advised = configure(cache={"kv_cache_memory_bytes": room << 20})
    assert resolve(advised, smollm2(), {}, facts).plan.total <= free
    blocks = (free - rest) // plan.slab_bytes
    many = configure(cache={"num_gpu_blocks_override": blocks + 1})
    with pytest.raises(CapacityError, match=f"lower --num-gpu-blocks-override to at most {blocks}"):
        resolve(many, smollm2(), {}, facts)
    with pytest.raises(CapacityError, match="free: free memory, or choose a smaller"):
        resolve(wide, smollm2(), {}, machine(free=rest))


def test_two_sizes_of_the_pool_contradict_each_other():
    config = configure(cache={"kv_cache_memory_bytes": 1 << 30, "num_gpu_blocks_override": 40})
    with pytest.raises(ConfigError, match="leave out one of them"):
        resolve(config, smollm2(), {}, machine())


def test_what_the_user_sets_stays():
    config = configure(
        model={"dtype": "half", "max_model_len": 1000},
        scheduler={"max_num_seqs": 3, "max_num_batched_tokens": 77, "max_step_ms": 0},
        cache={"kv_cache_memory_bytes": 100 << 20, "kv_cache_dtype": "float32", "block_size": 16},
        device={"threads": 1},
        speculation={"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
    )
    resolution = resolve(config, smollm2(), {}, machine())
    assert resolution.config.model.dtype == "float16"
    assert resolution.config.model.max_model_len == 1000
    scheduler = resolution.config.scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (3, 77)
    assert resolution.config.speculation == ResolvedSpeculation("ngram", 5, 32)
    assert scheduler.max_step_seconds == scheduler.max_step_growth == math.inf
    assert resolution.plan.kv_pool <= 100 << 20
    assert not {r.field for r in resolution.reasons} - {"kv_cache_memory_bytes", "architecture"}


@pytest.mark.parametrize("name", ["int8", "int8_per_token_head", "fp8", "fp8_e4m3", "fp8_e5m2"])
def test_an_int8_cache_has_a_scale_per_token_and_head(name):
    resolution = resolve(configure(cache={"kv_cache_dtype": name}), smollm2(), {}, machine())
    assert resolution.config.cache.kv_cache_dtype == "int8"
    assert resolution.plan.kv_bytes_per_token == 30 * 2 * 3 * (64 + 4)


def test_a_q4_0_cache_has_a_scale_per_32_numbers():
    config = configure(cache={"kv_cache_dtype": "q4_0"})
    resolution = resolve(config, smollm2(), {}, machine())
    assert resolution.config.cache.kv_cache_dtype == "q4_0"
    assert resolution.plan.kv_bytes_per_token == 30 * 2 * 3 * 2 * 18
    with pytest.raises(ConfigError, match="--kv-cache-dtype q4_0: only a CPU's.*Take fp8 or int8"):
        resolve(config, smollm2(), {}, replace(machine(), device="cuda", capability=80))


@pytest.mark.parametrize(
    ("name", "kept"),
    [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")],
)
def test_an_fp8_cache_on_a_gpu_takes_a_byte_per_number(name, kept):
    facts = replace(machine(), device="cuda", capability=80)
    resolution = resolve(configure(cache={"kv_cache_dtype": name}), smollm2(), {}, facts)
    assert resolution.config.cache.kv_cache_dtype == kept
    assert resolution.plan.kv_bytes_per_token == 30 * 2 * 3 * 64
    assert resolution.attention.names == ("triton",)


def test_a_budget_below_one_token_per_request_is_refused():
    config = configure(scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 32})
    with pytest.raises(ConfigError, match="--max-num-batched-tokens 32"):
        resolve(config, smollm2(), {}, machine())


PACKS = frozenset({"Q4_1", "Q8_0", "BF16"})


@pytest.mark.parametrize("method", ["fp8", "int8", "int4"])
def test_rounded_weights_are_planned_as_they_will_be(method):
    spec = with_weights()
    config = configure(model={"quantization": method})
    resolution = resolve(config, spec, tensors("BF16", 2), machine(packed_storages=PACKS))
    # The table is int8 in both, at 34 bytes per 32 weights.
    assert resolution.plan.weights == 49152 * 576 * 34 // 32 + 4 * 576 + REST
    layer = WeightRule("layers.{layer}.mlp.down.weight", ("blk.{layer}.weight",))
    spec = replace(smollm2(), weights=(layer,))
    size = 576 * 1536
    blocks = {f"blk.{i}.weight": TensorInfo("", (576, 1536), "F16", 2 * size) for i in range(30)}
    resolution = resolve(config, spec, blocks, machine(packed_storages=PACKS))
    rounded = 30 * size * {"fp8": 34, "int8": 34, "int4": 20}[method] // 32
    table = 2 * 49152 * 576 + 4 * 576
    assert resolution.plan.weights == rounded + table + REST - 2 * 30 * size
    assert resolution.config.cache.kv_cache_dtype == "float16"


@pytest.mark.parametrize(
    ("model", "facts", "storage", "words"),
    [
        ({}, {}, "BF16", "needs the native kernels of a CPU"),
        ({"dtype": "bfloat16"}, {"packed_storages": PACKS}, "BF16", "--dtype bfloat16 goes with"),
        ({}, {"packed_storages": PACKS}, "Q4_1", "quantized already.*token_embd.weight is Q4_1"),
        ({"load_format": "dummy"}, {"packed_storages": PACKS}, "BF16", "dummy has none"),
    ],
)
def test_what_cannot_be_rounded_says_why(model, facts, storage, words):
    config = configure(model={"quantization": "int8", **model})
    with pytest.raises(ConfigError, match=f"--quantization int8.*{words}"):
        resolve(config, with_weights(), tensors(storage, 1), machine(**facts))


def test_rows_of_no_whole_blocks_stay_as_they_are():
    spec = replace(smollm2(), weights=(WeightRule("layers.0.x.weight", ("x",)),))
    info = {"x": TensorInfo("x", (8, 40), "BF16", 640)}
    assert quantized_tensors(spec, info, "int4") == info


def test_several_devices_share_what_they_can():
    def plan(size: int):
        parallel = {"tensor_parallel_size": size}
        return resolve(configure(parallel=parallel), smollm2(), {}, machine()).plan

    alone, three = plan(1), plan(3)
    norms = 2 * (2 * 30 + 1) * 576
    assert alone.weights - norms == 3 * (three.weights - norms)
    assert alone.kv_bytes_per_token == 3 * three.kv_bytes_per_token
    with pytest.raises(ConfigError, match="3 KV heads cannot be split over 2"):
        plan(2)
    with pytest.raises(ConfigError, match=r"2 KV heads cannot be repeated over 9 .*-size of 1\."):
        resolve(
            configure(parallel={"tensor_parallel_size": 9}),
            replace(smollm2(), layers=(_layer(9, 2),)), {}, machine(),
        )  # fmt: skip


def _layer(heads: int, kv_heads: int) -> LayerSpec:
    attention = AttentionSpec("full", heads, kv_heads, 64, 0.125, RopeSpec(1e5, 64))
    return LayerSpec(attention, MlpSpec(1536))


def test_no_bfloat16_means_float16():
    facts = machine(supports_bf16=False, name="V100")
    resolution = resolve(EngineConfig(), smollm2(), {}, facts)
    assert resolution.config.model.dtype == "float16"
    assert any("V100 has no bfloat16" in reason.why for reason in resolution.reasons)


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(2, 512).map(lambda x: x * GIB // 4),
    share=st.floats(0.2, 1.0),
    length=st.one_of(st.none(), st.just("auto"), st.integers(1, 300_000)),
    reqs=st.integers(1, 300),
    position=st.integers(16, 1 << 20),
)
def test_plans_fit_and_hold_one_request(total, share, length, reqs, position):
    config = configure(
        model={"max_model_len": length},
        scheduler={"max_num_seqs": reqs},
        cache={"gpu_memory_utilization": share},
    )
    try:
        resolution = resolve(config, smollm2(position), {}, machine(total))
    except CapacityError:
        return
    plan, resolved = resolution.plan, resolution.config
    assert plan.total <= total * share
    assert plan.kv_tokens >= resolved.model.max_model_len >= 1
    assert length is None or length == "auto" or resolved.model.max_model_len == length


def tensors(storage: str, block_bytes: float) -> dict[str, TensorInfo]:
    shape = (49152, 576)
    size = int(shape[0] * shape[1] * block_bytes)
    return {
        "token_embd.weight": TensorInfo("token_embd.weight", shape, storage, size),
        "output_norm.weight": TensorInfo("output_norm.weight", (576,), "F32", 4 * 576),
    }


# What else the model has, in bf16: 134,515,008 parameters as its model card counts, less the table
# and a norm. The norms of 30 layers are fp32 beside packed weights.
REST = 2 * (134_515_008 - 49152 * 576 - 576) + 2 * 30 * 2 * 576


def with_weights() -> ModelSpec:
    """Only these two are in the checkpoint."""
    rules = (
        WeightRule("embed.weight", ("token_embd.weight",)),
        WeightRule("norm.weight", ("output_norm.weight",)),
    )
    return replace(smollm2(), weights=rules)


@pytest.mark.parametrize(
    ("storage", "bytes_per_weight", "kept"),
    [("Q4_1", 20 / 32, 20 / 32), ("BF16", 2, 2), ("IQ1_S", 50 / 256, 2)],
)
def test_packed_weights_keep_their_bits(storage, bytes_per_weight, kept):
    facts = machine(packed_storages=frozenset({"Q4_1", "BF16"}))
    resolution = resolve(EngineConfig(), with_weights(), tensors(storage, bytes_per_weight), facts)
    assert resolution.packed
    assert resolution.config.model.dtype == "float32"
    assert resolution.config.cache.kv_cache_dtype == "bfloat16"
    assert resolution.plan.weights == 49152 * 576 * kept + 4 * 576 + REST


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_type_that_is_asked_for_is_not_packed(dtype):
    facts = machine(packed_storages=frozenset({"Q4_1"}))
    config = configure(model={"dtype": dtype})
    resolution = resolve(config, with_weights(), tensors("Q4_1", 20 / 32), facts)
    assert not resolution.packed
    assert resolution.plan.weights > 49152 * 576 * 2
    assert resolution.config.cache.kv_cache_dtype == dtype


KERNELS = frozenset({"Q4_0", "Q4_1", "Q8_0", "BF16"})


@pytest.mark.parametrize(
    ("storage", "held", "bytes_per_weight", "words"),
    [
        ("INT4", "Q4_0", 18 / 32, "the same codes"),
        ("UINT4", "Q4_1", 20 / 32, "the same codes"),
        ("INT8", "Q8_0", 34 / 32, "the same codes"),
        ("FP8", "Q8_0", 34 / 32, "0.55%"),
        ("FP4", "Q8_0", 34 / 32, "0.57%"),
        ("DECODED", "Q8_0", 34 / 32, "0.5%"),
    ],
)
def test_a_quantized_checkpoint_is_planned_as_it_is_held(storage, held, bytes_per_weight, words):
    spec = replace(with_weights(), quantization="GPTQ, 4 bits")
    facts = machine(packed_storages=KERNELS)
    resolution = resolve(EngineConfig(), spec, tensors(storage, 36 / 32), facts)
    assert resolution.plan.weights == 49152 * 576 * bytes_per_weight + 4 * 576 + REST
    (reason,) = (r for r in resolution.reasons if r.field == "quantization")
    assert reason.value == "GPTQ, 4 bits"
    assert f"{storage} held as {held}" in reason.why and words in reason.why


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_kernels_it_is_decoded_to_its_own_type(dtype):
    spec = replace(with_weights(), quantization="AWQ, 4 bits", dtype=dtype)
    resolution = resolve(EngineConfig(), spec, tensors("UINT4", 21 / 32), machine())
    assert resolution.config.model.dtype == dtype
    assert resolution.plan.weights == 2 * 134_515_008
    (reason,) = (r for r in resolution.reasons if r.field == "quantization")
    assert f"UINT4 held as {dtype}: decoded as it loads" in reason.why


def test_fp8_on_fp8_only_repeats_it():
    config = configure(model={"quantization": "fp8"})
    resolution = resolve(config, with_weights(), tensors("FP8", 36 / 32), machine())
    assert resolution.config.model.quantization == "none"
    with pytest.raises(ConfigError, match="--quantization fp8.*quantized already"):
        resolve(config, with_weights(), tensors("INT8", 1), machine(packed_storages=KERNELS))


def test_a_vision_tower_stays_at_8_bits():
    rules = (WeightRule("vision.x.weight", ("v",)), WeightRule("layers.0.x.weight", ("x",)))
    spec = replace(smollm2(), weights=rules)
    info = {name: TensorInfo(name, (8, 64), "BF16", 1024) for name in ("v", "x")}
    rounded = quantized_tensors(spec, info, "int4")
    assert (rounded["v"].type, rounded["x"].type) == ("Q8_0", "Q4_1")


def a_gpu(**changes) -> DeviceFacts:
    """As its kernels are: they keep quantized weights, and take activations in any type."""
    kept = frozenset({"INT4", "FP8", "Q4_K", "Q4_1", "Q8_0"})
    return replace(machine(**changes), device="cuda", packed_storages=kept)


@pytest.mark.parametrize("dtype", ["auto", "float16"])
@pytest.mark.parametrize(
    ("storage", "bytes_per_weight", "kept"),
    [("Q4_K", 144 / 256, 148 / 256), ("INT4", 20 / 32, 20 / 32), ("IQ1_S", 50 / 256, 2),
     ("F32", 4, 2), ("BF16", 2, 2)],
)  # fmt: skip
def test_a_gpu_keeps_quantized_weights_beside_any_dtype(storage, bytes_per_weight, kept, dtype):
    config = configure(model={"dtype": dtype})
    found = resolve(config, with_weights(), tensors(storage, bytes_per_weight), a_gpu())
    assert found.packed
    wanted = "bfloat16" if dtype == "auto" else dtype
    assert found.config.model.dtype == found.config.cache.kv_cache_dtype == wanted
    plain = 2 * (134_515_008 - 49152 * 576)
    assert found.plan.weights == 49152 * 576 * kept + plain
    if dtype == "auto" and kept < 2:
        assert any(f"weights stay {storage}" in reason.why for reason in found.reasons)


def test_a_gpu_rounds_plain_weights():
    config = configure(model={"quantization": "int4", "dtype": "float16"})
    found = resolve(config, with_weights(), tensors("BF16", 2), a_gpu())
    # The table stays at 8 bits.
    assert found.plan.weights == 49152 * 576 * 34 // 32 + 2 * (134_515_008 - 49152 * 576)


def test_published_weights_stay_on_a_gpu():
    spec = replace(with_weights(), quantization="GPTQ, 4 bits")
    found = resolve(EngineConfig(), spec, tensors("INT4", 20 / 32), a_gpu())
    (reason,) = (r for r in found.reasons if r.field == "quantization")
    assert reason.why == "INT4 stays"


@pytest.mark.parametrize("name", ["int8", "q4_0", "fp8"])
def test_keys_of_an_indexer_are_not_rounded_along_with_what_attention_reads(name):
    config = tiny.SIZES | tiny.DEEPSEEK_V32 | {"architectures": ["DeepseekV32ForCausalLM"]}
    spec = spec_for(config, {}, ())
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {name}: .*Take auto, bfloat16"):
        resolve(configure(cache={"kv_cache_dtype": name}), spec, {}, machine())
