"""Figures of a load test, on numbers worked out by hand."""

import numpy as np
import pytest

from pagoda.bench.serving_table import serving_table
from pagoda.bench.stats import (
    RequestRecord,
    peak_concurrency,
    peak_tokens_per_second,
    summarize,
)


def record(started, ttft, itls, tokens=None, error=""):
    return RequestRecord(
        prompt_tokens=10,
        started=started,
        ttft=ttft,
        itls=itls,
        latency=ttft + sum(itls),
        output_tokens=len(itls) + 1 if tokens is None else tokens,
        error=error,
    )


A = record(100.0, 0.2, [0.1, 0.3])  # 3 tokens until 100.6
B = record(100.5, 0.4, [0.2])  # 2 tokens until 101.1
C = record(101.0, 1.0, [])  # 1 token at 102.0
FAILED = record(100.0, 0.0, [], error="no")


def test_totals_and_rates():
    result = summarize([A, B, C, FAILED], 2.0)
    assert (result["completed"], result["failed"]) == (3, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (30, 6)
    assert result["request_throughput"] == 1.5
    assert result["output_throughput"] == 3.0
    assert result["total_token_throughput"] == 18.0
    assert result["request_goodput"] is None


def test_latencies_in_milliseconds():
    result = summarize([A, B, C], 2.0, percentiles=(50, 99, 99.9))
    assert result["mean_ttft_ms"] == pytest.approx(1600 / 3)
    assert result["median_ttft_ms"] == pytest.approx(400)
    assert result["std_ttft_ms"] == pytest.approx(np.std([200, 400, 1000]))
    # (0.4 / 2) and (0.2 / 1); one token alone has no time per further token
    assert result["mean_tpot_ms"] == pytest.approx(200)
    assert result["mean_itl_ms"] == pytest.approx(200)
    assert result["p50_itl_ms"] == pytest.approx(200)
    assert result["p99_itl_ms"] == pytest.approx(298)
    assert result["median_e2el_ms"] == pytest.approx(600)
    assert result["p99.9_e2el_ms"] == pytest.approx(999.2)


def test_a_chunk_may_hold_several_tokens():
    many = record(0.0, 1.0, [1.0], tokens=11)
    assert many.tpot == pytest.approx(0.1)


def test_peaks():
    assert peak_concurrency([A, B, C]) == 2
    assert peak_concurrency([record(0, 1, []), record(1, 1, [])]) == 1
    # arrivals at 100.2 100.3 100.6 100.9 | 101.1 | 102.0
    assert peak_tokens_per_second([A, B, C]) == 4
    assert peak_tokens_per_second([]) == 0


def test_goodput_counts_requests_within_every_limit():
    result = summarize([A, B, C], 2.0, goodput={"ttft": 500, "e2el": 600.001})
    assert result["request_goodput"] == pytest.approx(1.0)
    assert summarize([A, B, C], 2.0, goodput={"ttft": 300})["request_goodput"] == 0.5


def test_nothing_completed_is_no_crash():
    result = summarize([FAILED], 1.0)
    assert result["completed"] == 0
    assert result["mean_ttft_ms"] == 0


def test_the_table_is_vllm_s():
    result = summarize([A, B, C], 2.0) | {"max_concurrency": 4, "request_rate": "inf"}
    lines = serving_table(result, ["ttft", "e2el"], [99]).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert f"{'Successful requests:':<40} {3:<10}" in lines
    assert f"{'Maximum request concurrency:':<40} {4:<10}" in lines
    assert f"{'Output token throughput (tok/s):':<40} {'3.00':<10}" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "----------------End-to-end Latency----------------" in lines
    assert f"{'P99 E2EL (ms):':<40} {'992.00':<10}" in lines
    assert not any("Request rate" in line or "goodput" in line for line in lines)
