"""Any valid config can be planned, more never needs less, and questions invert."""

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagoda.doctor.answer import answer
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.subject import find_subject
from pagoda.planner.resolve import resolve
from tests.unit.doctor.models import GPT_OSS, LLAMA, QWEN3_5, QWEN3_MOE, box

_QUANTIZED = (
    None,
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
)


@st.composite
def configs(draw):
    config = dict(draw(st.sampled_from([LLAMA, QWEN3_MOE, GPT_OSS, QWEN3_5])))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.integers(1, 8))
    config["head_dim"] = draw(st.sampled_from([32, 64, 128, 256]))
    config |= {
        "num_key_value_heads": kv_heads, "num_attention_heads": heads,
        "hidden_size": 64 * draw(st.integers(1, 128)),
        "intermediate_size": 32 * draw(st.integers(1, 512)),
        "num_hidden_layers": draw(st.integers(1, 96)), "vocab_size": draw(st.integers(1, 300_000)),
        "max_position_embeddings": draw(st.integers(1, 1 << 20)),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
    }  # fmt: skip
    if "quantization_config" not in config:
        config["quantization_config"] = draw(st.sampled_from(_QUANTIZED))
    if "moe_intermediate_size" in config:
        config["num_experts"] = draw(st.integers(1, 256))
        config["num_experts_per_tok"] = draw(st.integers(1, min(16, config["num_experts"])))
    if "sliding_window" in config:
        config["sliding_window"] = draw(st.integers(1, 8192))
    if "linear_num_key_heads" in config:
        keys = draw(st.sampled_from([1, 2, 16]))
        config["linear_num_key_heads"] = keys
        config["linear_num_value_heads"] = keys * draw(st.integers(1, 3))
    return config


@st.composite
def questions(draw):
    return EngineConfig(
        cache=CacheConfig(
            block_size=draw(st.sampled_from([1, 16, 64])),
            kv_cache_dtype=draw(st.sampled_from(["auto", "int8", "float32"])),
            kv_cache_memory_bytes=draw(st.none() | st.integers(1, 1 << 36)),
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=draw(st.just("auto") | st.integers(1, 512)),
            max_num_batched_tokens=draw(st.just("auto") | st.integers(512, 16384)),
        ),
    )


def _on_disk(config, subject, hardware, length) -> int | None:
    """Bytes that are read from disk with such a context; None where it does not fit."""
    config = replace(config, model=replace(config.model, max_model_len=length))
    try:
        plan = resolve(config, subject.spec, subject.tensors, hardware.facts).plan
    except CapacityError:
        return None
    return plan.placement.nbytes


@settings(max_examples=70, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs(), questions(), st.sampled_from([4, 24, 192, 2048]), st.data())
def test_any_model_is_planned(tmp_path, config, question, total, data):
    (tmp_path / "config.json").write_text(json.dumps(config))
    subject = find_subject(ModelConfig(str(tmp_path)))
    hardware = box(total)
    made = answer(subject, hardware, question)
    if made.resolution is None:
        assert made.problem
        return
    plan = made.resolution.plan
    assert plan.total > 0 and plan.kv_tokens >= plan.max_model_len >= 1
    needs = [plan.slabs_for(n) for n in range(1, plan.max_model_len, 1 + plan.max_model_len // 50)]
    assert needs == sorted(needs)
    auto = resolve(
        replace(question, model=replace(question.model, max_model_len="auto")),
        subject.spec, subject.tensors, hardware.facts,
    )  # fmt: skip
    longest = auto.config.model.max_model_len
    shorter = data.draw(st.integers(1, longest))
    assert _on_disk(question, subject, hardware, shorter) is not None
    if longest < subject.spec.max_position:
        longer = _on_disk(question, subject, hardware, longest + question.cache.block_size)
        assert longer is None or longer > auto.plan.placement.nbytes


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs(), st.sampled_from([2, 4, 8]))
def test_more_devices_never_hold_more_each(tmp_path, config, count):
    (tmp_path / "config.json").write_text(json.dumps(config))
    subject = find_subject(ModelConfig(str(tmp_path)))
    question = EngineConfig(model=ModelConfig(max_model_len=1))
    plans = []
    for size in (1, count):
        parallel = replace(question.parallel, tensor_parallel_size=size)
        try:
            made = answer(subject, elsewhere(f"{size}xb200"), replace(question, parallel=parallel))
        except ConfigError as error:
            assert "cannot be" in str(error)
            return
        plans.append(made.resolution and made.resolution.plan)
    alone, shared = plans
    if alone is not None:
        assert shared is not None
        assert shared.weights <= alone.weights
        assert shared.kv_bytes_per_token <= alone.kv_bytes_per_token
