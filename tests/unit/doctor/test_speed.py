"""Speeds follow from bytes and operations; the arithmetic here is done by hand."""

from dataclasses import replace
from math import inf

import pytest

from pagoda.config.engine import DeviceConfig
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.hardware import elsewhere
from pagoda.doctor.measure import Measuring
from pagoda.kernels import cpu
from pagoda.planner.speed import DeviceSpeed, ProductSpeed, gpu_speed
from pagoda.weights.formats import FORMATS
from tests.unit.doctor.models import LLAMA, QWEN3_MOE, asked, box, subject_of

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
    return with_speed(answer(subject, box(128), asked(subject)), speed).speed


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


def test_a_gpu_reads_at_three_quarters_of_its_nominal_rate():
    speed = gpu_speed(replace(H100, bandwidth=1e12, matmul={"bf16": 1e14, "fp8": 2e14}))
    assert speed.read == 0.75e12
    assert speed.products["BF16"] == ProductSpeed(inf, 0.5e14)


def speeds(tmp_path, config, gpus, **flags):
    subject = subject_of(tmp_path, config)
    wanted = replace(asked(subject), device=DeviceConfig(**flags))
    hardware = elsewhere(gpus)
    return with_speed(answer(subject, hardware, wanted), gpu_speed(hardware.gpu)).speed


def test_experts_are_read_slower_than_other_weights(tmp_path):
    subject, hardware = subject_of(tmp_path, QWEN3_MOE), elsewhere("H100")
    speed = gpu_speed(hardware.gpu)
    found, dense = (
        with_speed(answer(subject, hardware, asked(subject)), each).speed
        for each in (speed, replace(speed, experts=1.0))
    )
    experts = 48 * 8 * 2 * 3 * 2048 * 768
    assert 1 / found.decode - 1 / dense.decode == pytest.approx(
        experts / speed.read * (1 / 0.3 - 1), rel=1e-6
    )


def test_operations_that_python_starts_cost_more(tmp_path):
    captured = speeds(tmp_path, LLAMA, "A100-80G")
    eager = speeds(tmp_path, LLAMA, "A100-80G", enforce_eager=True)
    assert eager.decode_bound == "starting operations"
    # Nine a layer and four.
    assert 1 / eager.decode - 1 / captured.decode == pytest.approx((9 * 22 + 4) * 27e-6)


def test_devices_exchange_what_they_have(tmp_path):
    """Twice a layer, and slower over PCIe."""
    one, two = (speeds(tmp_path, LLAMA, gpus) for gpus in ("3090", "3090x2"))
    assert one.decode < two.decode < 1.5 * one.decode
    wired = speeds(tmp_path, LLAMA, "A100-80Gx2")
    alone = speeds(tmp_path, LLAMA, "A100-80G")
    assert wired.prefill < 2 * alone.prefill and two.prefill < 1.9 * one.prefill


def test_weights_in_the_hosts_memory_come_over_the_bus(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    speed = replace(gpu_speed(H100), host=8e9)
    flags = DeviceConfig(n_cpu_moe=12)
    config = replace(asked(subject), device=flags)
    whole, found = (
        with_speed(answer(subject, elsewhere("H100"), each), speed).speed
        for each in (asked(subject), config)
    )
    experts = 12 * 2 * 3 * 2048 * 768
    assert 1 / found.decode - 1 / whole.decode == pytest.approx(8 * experts / 8e9)
    assert 512 / found.prefill - 512 / whole.prefill == pytest.approx(128 * experts / 8e9)
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
