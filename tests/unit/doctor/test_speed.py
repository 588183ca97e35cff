"""Speeds follow from bytes and operations; the arithmetic here is done by hand."""

from dataclasses import replace
from math import inf

import pytest

from pagoda.arch.registry import spec_for
from pagoda.config.engine import DeviceConfig, ParallelConfig
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.machine.measure import Measuring
from pagoda.doctor.model_report import lines
from pagoda.doctor.users import Users
from pagoda.kernels import cpu
from pagoda.planner.devices.gpu_speed import launches
from pagoda.planner.devices.speed import DeviceSpeed, ProductSpeed
from pagoda.weights.formats import FORMATS
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B
from tests.unit.doctor.models import LLAMA, QWEN3_MOE, asked, box, subject_of
from tests.unit.planner import published

FAST = ProductSpeed(inf, inf)
H100 = elsewhere("H100").gpu


def device(**changes):
    values = {
        "read": 1e10, "products": dict.fromkeys(FORMATS, FAST), "start": 0.0, "step": 0.0,
        "floats": inf,
    }  # fmt: skip
    return DeviceSpeed(**{**values, **changes})


def estimate(tmp_path, config, speed):
    subject = subject_of(tmp_path, config)
    speeds = with_speed(answer(subject, box(128), asked(subject)), speed).speeds
    return None if speeds is None else speeds.one


LINEAR = 22 * (2048 * (2048 + 2 * 256) + 2048 * 2048 + 3 * 2048 * 5632)
HEAD = 2048 * 32000


def test_decoding_reads_every_weight_but_the_token_table(tmp_path):
    found = estimate(tmp_path, LLAMA, device())
    cached = 1024 * 22 * 2 * 4 * 64 * 2
    assert found.decode == pytest.approx(1e10 / (2 * (LINEAR + HEAD) + cached))
    assert found.decode_bound == "reading weights from memory"


def test_a_mixture_reads_the_chosen_experts(tmp_path):
    found = estimate(tmp_path, QWEN3_MOE, device())
    attention = 2048 * (4096 + 2 * 512) + 4096 * 2048
    experts = 8 * 3 * 2048 * 768
    layer = 2 * (attention + experts) + 4 * 128 * 2048  # routers are fp32
    cached = 1024 * 48 * 2 * 4 * 128 * 2
    assert found.decode == pytest.approx(1e10 / (48 * layer + 2 * 151936 * 2048 + cached))


def test_prompts_are_bound_by_arithmetic(tmp_path):
    products = dict.fromkeys(FORMATS, ProductSpeed(inf, 1e12))
    found = estimate(tmp_path, LLAMA, device(read=1e15, products=products))
    assert found.prefill == pytest.approx(1e12 / (2 * LINEAR), rel=1e-3)
    assert found.prefill_bound == "multiplying weights"


def test_slow_kernels_and_many_operations_are_named(tmp_path):
    products = dict.fromkeys(FORMATS, ProductSpeed(1e9, 1e12))
    found = estimate(tmp_path, LLAMA, device(products=products))
    assert found.decode_bound == "multiplying weights"
    found = estimate(tmp_path, LLAMA, device(start=1.0))
    assert found.decode_bound == "starting operations"


def test_no_speed_is_said_without_kernels_for_it(tmp_path):
    assert estimate(tmp_path, LLAMA, device(products={"Q4_0": FAST})) is None


def speeds(tmp_path, config, gpus, users=None, length=None, quantization="none", **flags):
    subject, hardware = subject_of(tmp_path, config), elsewhere(gpus)
    wanted = asked(subject, quantization=quantization, max_model_len=length)
    wanted = replace(wanted, device=DeviceConfig(**flags))
    return with_speed(answer(subject, hardware, wanted, users=users))


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize(
    ("config", "gpus", "tokens", "flags"),
    [
        (published.GPT_OSS_20B, "A100-80G", 165, {}),
        (GEMMA4_26B_A4B, "A100-80G", 18.5, {"enforce_eager": True}),
        (GEMMA4_26B_A4B, "A100-80G", 80.6, {"quantization": "fp8"}),
        (GEMMA4_31B, "A100-80G", 23, {}),
        (published.R1_DISTILL_7B, "V100-32G", 42, {}),
        (published.QWEN36_27B | {"quantization_config": AWQ}, "2080Ti-22Gx2", 45, {}),
    ],
    ids=["mxfp4 mixture", "eager mixture", "fp8 mixture", "31B", "7B", "int4 on two"],
)
def test_what_was_measured_is_in_the_range(tmp_path, config, gpus, tokens, flags):
    """Single streams as vLLM logged them."""
    found = speeds(tmp_path, config, gpus, length=4096, **flags).speeds.one
    low, high = found.decode_range
    assert low < tokens < high and low < found.decode < high
    assert high < 3.2 * low  # a range that says something


def test_operations_that_python_starts_cost_more(tmp_path):
    captured = speeds(tmp_path, LLAMA, "A100-80G").speeds.one
    eager = speeds(tmp_path, LLAMA, "A100-80G", enforce_eager=True).speeds.one
    assert eager.decode_bound == "starting operations"
    # Nine a layer and four, each 54 and 18 us later.
    for index, later in enumerate((54e-6, 18e-6)):
        step = 1 / eager.decode_range[index] - 1 / captured.decode_range[index]
        assert step == pytest.approx((9 * 22 + 4) * later)


def test_a_mixture_starts_more_kernels_than_its_weights_tell():
    dense, mixture, beside = (
        sum(launches(spec_for(config, {}, ())).values())
        for config in (LLAMA, QWEN3_MOE, GEMMA4_26B_A4B)
    )
    assert dense == 9 * 22 + 4
    assert mixture == (6 + 5) * 48 + 4  # no mlp
    assert beside > 24 * 25


def test_the_fastest_number_of_devices_is_taken(tmp_path):
    small = {
        **LLAMA, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    }  # fmt: skip
    for config, size in ((small, 1), (QWEN3_MOE, 4)):
        made = speeds(tmp_path, config, "3090x4")
        assert made.config.parallel.tensor_parallel_size == size
        said = " ".join(note.fix for note in made.findings if note.topic == "devices")
        assert ("would be slower" in said) == (size < 4)
    subject, hardware = subject_of(tmp_path, small), elsewhere("3090x4")
    three = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=3))
    others = with_speed(answer(subject, hardware, three)).speeds.one
    assert others.decode < speeds(tmp_path, small, "3090x4").speeds.one.decode


def test_requests_share_what_is_read(tmp_path):
    """A mixture's less than a dense model's: more tokens meet more experts."""
    gains = []
    for config in (QWEN3_MOE, LLAMA):
        found = speeds(tmp_path, config, "H100", users=Users(8, 1024)).speeds
        assert found.requests == 8
        assert found.one.decode < found.together.decode < 8 * found.one.decode
        gains.append(found.together.decode / found.one.decode)
    assert gains[0] < gains[1]


def test_requests_with_short_contexts_are_faster_than_with_full_ones(tmp_path):
    """Keys and values are read for each request, weights once for all."""
    subject = subject_of(tmp_path, LLAMA)
    made = with_speed(answer(subject, box(128), asked(subject), users=Users(8, 1024)), device())
    weights, cached = 2 * (LINEAR + HEAD), 1024 * 22 * 2 * 4 * 64 * 2
    assert made.speeds.together.decode == pytest.approx(8e10 / (weights + 8 * cached))
    assert made.speeds.together_empty.decode == pytest.approx(8e10 / weights)
    text = "\n".join(lines(made, [], False, 300))
    assert "where each is behind 1,024 tokens" in text and "with empty contexts" in text


def test_an_empty_context_is_faster(tmp_path):
    made = speeds(tmp_path, LLAMA, "3090", length=16384)
    assert made.speeds.context == 16384
    assert made.speeds.empty.decode > 1.02 * made.speeds.one.decode
    text = "\n".join(lines(made, [], False, 300))
    assert "behind 16,384 tokens" in text and "with an empty context" in text


def test_a_cpus_speed_is_a_range(tmp_path):
    found = estimate(tmp_path, LLAMA, device())
    low, high = found.decode_range
    assert low < found.decode < high


def test_weights_in_the_hosts_memory_come_over_the_bus(tmp_path):
    whole, found = (
        speeds(tmp_path, QWEN3_MOE, "H100", **flags).speeds.one for flags in ({}, {"n_cpu_moe": 12})
    )
    bus = 0.6 * H100.bus  # at the slowest
    experts = 12 * 2 * 3 * 2048 * 768
    step = 1 / found.decode_range[0] - 1 / whole.decode_range[0]
    assert step == pytest.approx(8 * experts / bus)
    prompt = 512 / found.prefill_range[0] - 512 / whole.prefill_range[0]
    assert prompt == pytest.approx(128 * experts / bus)
    assert found.decode_bound == "reading weights from the host's memory"


@pytest.mark.parametrize(("name", "gigabytes"), [("2080Ti", 15.8), ("3090", 31.5), ("5090", 63)])
def test_the_bus_of_a_gpu(name, gigabytes):
    assert elsewhere(name).gpu.bus == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_this_machine_is_measured():
    found = Measuring().ask(["BF16", "Q8_0"])
    if cpu.native() is None:
        assert found is None
        return
    assert set(found.products) == {"BF16", "Q8_0"}
    for speed in found.products.values():
        assert 1e7 < speed.decode < 1e13 and 1e8 < speed.prompt < 1e15
    assert 1e8 < found.read < 1e13
    assert 1e-8 < found.start < 1e-2


def test_a_measurement_that_fails_is_none(monkeypatch):
    measuring = Measuring()
    measuring._process.kill()
    assert measuring.ask(["BF16"]) is None
