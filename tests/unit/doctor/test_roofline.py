"""A decode step by operation; what is expected is added up by hand, or was reported by users."""

import json
from dataclasses import replace
from math import inf

import pytest

from pagoda.config.engine import DeviceConfig
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import lines
from pagoda.doctor.step_report import step_json
from pagoda.doctor.users import Users
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B
from tests.unit.doctor.models import LLAMA, QWEN3_MOE, asked, subject_of
from tests.unit.planner import published

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def made(tmp_path, config, gpus, users=None, **flags):
    subject = subject_of(tmp_path, config)
    wanted = replace(asked(subject, max_model_len=4096), device=DeviceConfig(**flags))
    return with_speed(answer(subject, elsewhere(gpus), wanted, users=users))


def by_name(step):
    return {line.name: line for line in step.lines}


def test_each_operation_has_its_bytes_operations_and_launches(tmp_path):
    found = made(tmp_path, LLAMA, "H100").speeds.step
    of = by_name(found)
    assert of["attention.qkv"].nbytes == 22 * 2 * 2048 * (2048 + 2 * 256)
    assert of["mlp.gate_up"].flops == 22 * 2 * 2048 * 2 * 5632
    assert of["head"].nbytes == 2 * 2048 * 32000
    assert of["attending"].nbytes == found.context * 22 * 2 * 4 * 64 * 2
    assert of["attending"].flops == 22 * 4 * found.context * 32 * 64
    assert [of[name].launches for name in ("norms", "storing", "mlp.down")] == [45, 22, 22]
    assert sum(line.launches for line in found.lines) == 9 * 22 + 4


def test_what_bounds_an_operation_is_named(tmp_path):
    of = by_name(made(tmp_path, LLAMA, "H100").speeds.step)
    assert of["mlp.gate_up"].bound == "memory"
    assert of["norms"].bound == "launches"
    crowd = by_name(made(tmp_path, LLAMA, "L4", Users(1024, 16)).speeds.step)
    assert crowd["mlp.gate_up"].bound == "arithmetic"
    host = by_name(made(tmp_path, QWEN3_MOE, "H100", n_cpu_moe=48).speeds.step)
    assert host["mlp.gate_up"].bound == "bus"
    assert host["attention.qkv"].bound == "memory"
    split = made(tmp_path, published.QWEN36_27B | {"quantization_config": AWQ}, "2080Ti-22Gx2")
    two = by_name(split.speeds.step)
    assert two["exchanging"].bound == "link" and two["exchanging"].launches == 2 * 64


@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=["dense", "mixture"])
@pytest.mark.parametrize("count", [1, 64])
def test_its_sum_is_what_the_speed_says(tmp_path, config, count):
    users = None if count == 1 else Users(count, 1024)
    found = made(tmp_path, config, "H100", users).speeds
    whole = found.one if count == 1 else found.together
    # Operations overlap with themselves alone, here, and with all others there.
    off = 0.001 if count == 1 else 0.1
    assert count / found.step.best == pytest.approx(whole.decode_range[1], rel=off)
    assert whole.decode_range[0] < count / found.step.seen < whole.decode_range[1]


@pytest.mark.parametrize(
    ("config", "gpus", "tokens", "flags"),
    [
        (published.GPT_OSS_20B, "A100-80G", 165, {}),
        (GEMMA4_26B_A4B, "A100-80G", 18.5, {"enforce_eager": True}),
        (GEMMA4_31B, "A100-80G", 23, {}),
        (published.R1_DISTILL_7B, "V100-32G", 42, {}),
        (published.QWEN36_27B | {"quantization_config": AWQ}, "2080Ti-22Gx2", 45, {}),
    ],
    ids=["mxfp4 mixture", "eager mixture", "31B", "7B", "int4 on two"],
)
def test_what_was_measured_is_explained(tmp_path, config, gpus, tokens, flags):
    """Single streams as vLLM logged them."""
    step = made(tmp_path, config, gpus, **flags).speeds.step
    assert 1 / step.seen == pytest.approx(tokens, rel=0.2)
    assert step.best < step.seen


def test_the_report_has_a_line_for_each(tmp_path):
    answered = made(tmp_path, LLAMA, "H100")
    text = lines(answered, [], True, 300)
    assert not any("launches" in line for line in lines(answered, [], False, 300))
    head = next(index for index, line in enumerate(text) if "launches" in line)
    assert text[head + 1].split()[0] == "embedding"
    assert any(line.split()[:2] == ["together", str(9 * 22 + 4)] for line in text)
    told = json.loads(json.dumps(step_json(answered.speeds.step)))
    assert told["seconds_as_seen"] == pytest.approx(
        sum(operation["seconds_as_seen"] for operation in told["operations"])
    )
    assert all(0 <= operation["bytes"] < inf for operation in told["operations"])
