"""Latency and throughput, with an engine that takes a known time."""

import pytest

from pagoda.bench import inprocess
from pagoda.bench.inprocess import BenchEngine, Passes
from pagoda.bench.latency import LatencyConfig, bench_latency, latency_lines
from pagoda.bench.throughput import bench_throughput, throughput_lines
from pagoda.core.messages import RequestDelta


class Engine:
    def __init__(self, seconds):
        self.seconds = iter(seconds)
        self.batches = []
        self.kernel_seconds = self.mask_seconds = 0.0

    def random_prompt(self, length):
        return [0] * length

    def run(self, prompts, output_tokens, temperature, progress=None, grammar=None):
        if progress is not None:
            progress(len(prompts), len(prompts))
        self.batches.append(([len(prompt) for prompt in prompts], list(output_tokens)))
        seconds = next(self.seconds)
        self.kernel_seconds += 0.75 * seconds
        self.mask_seconds += 0.1 * seconds if grammar else 0
        return seconds

    def forward_passes(self):
        return Passes(10 * len(self.batches), self.kernel_seconds, self.mask_seconds)

    def op_times(self):
        return {"rms_norm": (61, 0.001), "matmul": (121, 0.003)}


def test_latency_leaves_the_warm_up_out():
    engine = Engine([9.0, 9.0, 1.0, 2.0, 3.0])
    config = LatencyConfig(input_len=4, output_len=6, batch_size=2, num_iters_warmup=2, num_iters=3)
    result = bench_latency(engine, config, lambda done, total: None)
    assert engine.batches == [([4, 4], [6, 6])] * 5
    assert result["avg_latency"] == 2.0
    assert result["latencies"] == [1.0, 2.0, 3.0]
    assert result["percentiles"]["50"] == 2.0
    assert result["percentiles"]["90"] == pytest.approx(2.8)
    assert latency_lines(result).splitlines()[1] == "Avg latency: 2.0000 seconds"
    assert "50% percentile latency: 2.0000 seconds" in latency_lines(result)
    assert "Outside kernels: 50000 us per step, 25.0% of the time" in latency_lines(result)
    assert latency_lines(result).splitlines()[-2:] == [
        "          matmul:     3000 us in 121 calls, 75.0%",
        "        rms_norm:     1000 us in 61 calls, 25.0%",
    ]


def test_what_masks_take_is_told():
    engine = Engine([9.0, 1.0, 3.0])
    config = LatencyConfig(num_iters_warmup=1, num_iters=2, json_schema='{"type": "object"}')
    lines = latency_lines(bench_latency(engine, config, lambda done, total: None)).splitlines()
    assert "Masks of the schema: 20000 us per step, 10.0% of the time" in lines


def test_throughput():
    engine, seen = Engine([5.0, 2.0]), []
    result = bench_throughput(engine, [[0] * 10, [0] * 20], [5, 15], lambda *at: seen.append(at))
    assert seen == [(0, 2), (2, 2)]
    assert engine.batches[1] == ([10, 20], [5, 15])
    assert throughput_lines(result).splitlines() == [
        "Throughput: 1.00 requests/s, 25.00 total tokens/s, 10.00 output tokens/s",
        "Total num prompt tokens:  30",
        "Total num output tokens:  20",
    ]
    assert result["elapsed_time"] == 2.0


class Core:
    """Answers each step with the next of a script, and a second passes."""

    def __init__(self, script, monkeypatch):
        self.script = iter(script)
        self.now = 0.0
        monkeypatch.setattr(inprocess.time, "perf_counter", lambda: self.now)

    def handle(self, message):
        pass

    def step(self):
        self.now += 1.0
        return [
            RequestDelta(
                req_id=f"bench-{number}",
                token_ids=[7] * count,
                finish_reason="length" if ends else None,
            )
            for number, count, ends in next(self.script)
        ]


def test_decoding_starts_when_every_request_has_a_token(monkeypatch):
    script = [
        [],  # the first prompt's first half
        [(0, 1, False)],
        [(0, 1, False), (1, 1, False)],
        [(0, 1, True), (1, 2, False)],
        [(1, 1, True)],
    ]
    engine = BenchEngine(Core(script, monkeypatch), ready=None)
    assert engine.run_decode([[1, 2], [3]], [3, 4]) == (2.0, 4)


def test_a_run_lasts_until_the_last_request_ends(monkeypatch):
    script = [[(0, 1, True), (1, 1, False)], [], [(1, 1, True)]]
    seen = []
    engine = BenchEngine(Core(script, monkeypatch), ready=None)
    assert engine.run([[1], [2]], [1, 2], progress=lambda *at: seen.append(at)) == 3.0
    assert seen == [(1, 2), (2, 2)]


def test_steps_are_told_one_by_one(monkeypatch):
    script = [[], [(0, 1, False)], [(0, 1, True), (1, 2, True)]]
    engine = BenchEngine(Core(script, monkeypatch), ready=None)
    assert list(engine.steps([[1, 2], [3]], [2, 2])) == [(0, 1.0), (1, 1.0), (3, 1.0)]
