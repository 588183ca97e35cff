"""`bench micro`: ceilings, cases and tables, on a few kernels."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("pagoda.kernels.cpu._native", reason="the native kernels are not built here")

from pagoda.bench.kernels.cases import Case, all_cases
from pagoda.bench.kernels.run import Ceilings, Timing, measure_ceilings, time_cases
from pagoda.bench.kernels.tables import as_json, markdown
from pagoda.kernels import cpu

CEILINGS = Ceilings({1 << 20: 100e9, 1 << 24: 20e9}, dot=1e12, fma=1e11)


def case(nbytes, ops, footprint, arithmetic="dot"):
    return Case("matmul", "x", 1, nbytes, ops, footprint, arithmetic, lambda: lambda: None)


def test_bandwidth_lies_between_the_measured_sizes():
    assert CEILINGS.bandwidth(1 << 10) == 100e9
    assert CEILINGS.bandwidth(1 << 22) == pytest.approx(60e9)
    assert CEILINGS.bandwidth(1 << 30) == 20e9


def test_a_ceiling_is_the_longer_of_bytes_and_arithmetic():
    assert CEILINGS.seconds(case(2 << 20, 10, 1 << 30)) == (2 << 20) / 20e9
    assert CEILINGS.seconds(case(1, 10**9, 1 << 20)) == 1e-3
    assert CEILINGS.seconds(case(1, 10**9, 1 << 20, "fma")) == 1e-2


def test_every_kernel_and_format_has_a_line():
    cases = list(all_cases())
    assert {one.kernel for one in cases} == {
        "matmul", "add_rms_norm", "activate_and_mul", "rotary_store", "paged_attention", "argmax",
        "top_k", "gated_delta_rule", "causal_conv",
    }  # fmt: skip
    storages = {one.what.split()[-1] for one in cases if one.kernel == "matmul"}
    assert storages == cpu.packed_storages()
    # 576 columns fill no block of 256.
    assert not [one for one in cases if one.what == "135M qkv Q4_K"]


def test_a_product_counts_each_byte_once():
    (found,) = [c for c in all_cases() if c.what == "135M o Q4_1" and c.tokens == 4]
    assert found.ops == 2 * 4 * 576 * 576
    assert found.nbytes == 576 * 576 // 32 * 20 + 4 * 4 * (576 + 576)
    assert (100 << 20) < found.footprint <= (128 << 20)


@pytest.mark.parametrize(
    "what",
    [
        "135M o Q4_0",
        "135M",
        "135M decode at 128",
        "135M prompt of 128",
        "135M 64",
        "27B decode",
        "27B prompt",
    ],
)
def test_cases_run(what):
    cases = [one for one in all_cases() if one.what == what and one.tokens in (1, 128)]
    ceilings = measure_ceilings(cpu.native(), lambda done, total: None, sizes=(1 << 16,))
    timings = list(time_cases(cases, ceilings, 0.0, lambda done, total: None))
    assert len(timings) == len(cases) > 0
    assert all(timing.seconds > 0 and timing.percent > 0 for timing in timings)


def test_the_tables_agree():
    timings = [Timing(case(1000, 2000, 1 << 20), seconds=1e-6, ceiling=5e-7)]
    about = {"isa": "avx2"}
    result = json.loads(as_json(CEILINGS, timings, about))
    assert result["kernels"][0]["percent_of_ceiling"] == 50
    line = markdown(CEILINGS, timings, about).splitlines()[-3]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["matmul x", "1", "1", "1.0", "2", "50"]


def test_a_kernel_that_is_not_there_is_named():
    command = [sys.executable, "-m", "pagoda", "bench", "micro", "--only", "matmul 9B"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "No kernel's line has the text 'matmul 9B'" in done.stderr
