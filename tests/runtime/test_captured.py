"""Captured decode steps, by graphs that run again on the same memory what was recorded."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pagoda.planner.captured import PADDING, CapturedSize, captured_sizes, mixed_sizes, usual_sizes
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.steps import captured
from pagoda.runtime.steps.captured import CapturedSteps
from pagoda.runtime.steps.graphs import CudaGraphs
from tests.runtime.test_next_steps import script  # noqa: F401  # a fixture

COST = 1000
GUESSES = captured_sizes(8, most_guesses=4, most_in_step=8)


class Graph:
    def __init__(self, gpu: "FakeGpu", work):
        self.gpu, self.work = gpu, work

    def replay(self):
        self.gpu.replays += 1
        if not self.gpu.broken:
            self.work()


class Tiles:
    """To be measured in some steps."""

    def __init__(self, steps: int, changed: bool):
        self.left, self.changed = steps, changed
        self.rows = [[True, "layout", "bfloat16", 64, 64, 16, 16, 64, 4, 3]]

    def go_on(self) -> bool:
        self.left -= 1
        return self.left > 0


class FakeGpu(CpuDevice):
    """A CPU that makes graphs; each takes COST bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 10**9
        self.replays = 0
        self.broken = False
        self.refuses: Exception | None = None
        self.refused: set[int] | None = None
        """Which of the graphs, counted from 0; None: all."""
        self.made = 0
        self.tiles: Tiles | None = None
        self.taken: list[list[object]] = []

    def tile_tuning(self, model, most_tokens):
        return self.tiles

    def take_tiles(self, rows):
        self.taken += rows

    def facts(self):
        return SimpleNamespace(free_memory=self.free)

    def graph_maker(self):
        def make(work):
            self.free -= COST
            self.made += 1
            if self.refuses is not None and (self.refused is None or self.made - 1 in self.refused):
                raise self.refuses
            return Graph(self, work)

        return lambda: make


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def make_captured(make_driver, gpu, monkeypatch):
    """A driver whose runner captures as soon as it can; and its captured steps."""

    def make(share: float = 1e9, **changes):
        monkeypatch.setattr(captured, "_SHARE", share)
        settings = {
            "device": gpu,
            "max_num_reqs": 8,
            "captured_bytes": 10**6,
            "captured_sizes": captured_sizes(8),
        }
        driver = make_driver(**(settings | changes))
        driver.runner.record()
        return driver, driver.runner.replays.program

    return make


def decode(driver, make_request, count: int, steps: int = 3) -> list[str]:
    """So many new requests, a few steps long; then they are gone."""
    names = [f"{driver.step_id}-{i}" for i in range(count)]
    driver.add(*(make_request(name, 9, temperature=0.0) for name in names))
    driver.finish(names, steps)
    for name in names:
        driver.free(name)
    return names


def plain(sizes) -> list[int]:
    """Numbers of requests, where each has one token."""
    assert all(size.requests == size.tokens for size in sizes)
    return [size.requests for size in sizes]


def test_sizes():
    assert plain(captured_sizes(1)) == [1]
    assert plain(captured_sizes(8)) == [1, 2, 4, 8]
    assert plain(captured_sizes(100)) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100]
    assert plain(captured_sizes(256))[-4:] == [96, 128, 192, 256]


def test_sizes_with_guesses():
    sizes = captured_sizes(4, most_guesses=3, most_in_step=8)
    assert plain(sizes[:3]) == [1, 2, 4]
    assert [size[:2] for size in sizes[3:]] == [(1, 2), (1, 4), (2, 4), (2, 8), (4, 8), (4, 12)]
    large = captured_sizes(256, most_guesses=3, most_in_step=32)
    assert max(size.tokens for size in large if size.tokens > size.requests) == 64
    assert len(large) < 40


def test_replays_equal_eager_steps(script, make_captured, make_driver, gpu):  # noqa: F811  # the fixture
    """With drafts, preemptions, chunks and requests that come and go; seeded draws too."""
    driver, steps = make_captured()
    tokens, advanced = script(driver)
    assert gpu.replays > 30 and advanced > 10
    assert len(steps._graphs) > 1
    assert tokens == script(make_driver(max_num_reqs=8))[0]


def test_steps_that_verify_guesses_are_captured(script, make_captured, make_driver, gpu):  # noqa: F811  # the fixture
    """What each needs first runs op by op; then all of the script's are replayed."""
    driver, steps = make_captured(captured_sizes=GUESSES)
    tokens, _ = script(driver)
    assert any(size.tokens > size.requests for size in steps._graphs)
    while driver.runner.work_ahead():
        pass
    assert set(steps._graphs) == set(GUESSES)
    again, _ = make_captured(captured_sizes=GUESSES)
    while again.runner.work_ahead():
        pass
    before = gpu.replays
    assert script(again)[0] == tokens == script(make_driver(max_num_reqs=8))[0]
    assert gpu.replays - before > 40


def test_rows_of_longer_steps_do_not_show_in_padding(make_captured, make_request):
    """A step of 5 tokens of one request leaves slots behind; a padded one of 3 must not write
    there, nor one of one token."""
    driver, steps = make_captured(captured_sizes=captured_sizes(1, most_guesses=7, most_in_step=7))
    while driver.runner.work_ahead():
        pass
    driver.add(make_request("a", 9, temperature=0.0))
    driver.finish(["a"], 2)
    driver.step({"a": 64}, {"a": [1, 2, 3, 4]})
    assert np.all(steps._inputs.groups[0].slot_mapping[:5] > 0)
    driver.step({"a": 64}, {"a": [1, 2]})
    assert np.all(steps._inputs.groups[0].slot_mapping[3:] == 0)
    driver.step({"a": 64})
    assert np.all(steps._inputs.groups[0].slot_mapping[1:] == 0)


def test_what_is_needed_first_is_captured_first(make_captured, make_request):
    driver, steps = make_captured()
    decode(driver, make_request, 3)
    decode(driver, make_request, 1)
    assert plain(steps._graphs) == [4, 1]
    more = [driver.runner.work_ahead() for _ in range(3)]
    assert more == [True, False, False]
    assert plain(steps._graphs) == [4, 1, 8, 2]


MIXED = (*GUESSES, *mixed_sizes(8, 512))


@pytest.mark.parametrize(("most", "count"), [(512, 50), (2048, 70), (3000, 80)])
def test_mixed_sizes(most, count):
    sizes = mixed_sizes(64, most)
    assert [(s.requests, s.tokens, s.samples) for s in sizes[:3]] == [
        (16, 16, 16), (64, 16, 64), (16, 32, 16),
    ]  # fmt: skip
    assert sizes[-1] == CapturedSize(64, most, prompts=True) and len(sizes) < count
    tokens = sorted({size.tokens for size in sizes})
    larger = zip(tokens, tokens[1:], strict=False)
    assert all(b <= (1 + PADDING) * a for a, b in larger if a >= 64)
    assert [size.tokens for size in mixed_sizes(1, 20)] == [16, 20]


def test_steps_with_prompts_are_captured(script, make_captured, make_driver, gpu):  # noqa: F811  # the fixture
    """Chunks of prompts beside streams, guesses and requests that end: the same tokens, and every
    step is replayed."""
    driver, steps = make_captured(captured_sizes=MIXED)
    while driver.runner.work_ahead():
        pass
    assert set(steps._graphs) == set(MIXED)
    before = gpu.replays
    assert script(driver)[0] == script(make_driver(max_num_reqs=8))[0]
    assert gpu.replays - before == driver.step_id


def test_rows_of_larger_steps_are_not_sampled_in_padding(make_captured, make_request):
    driver, steps = make_captured(captured_sizes=mixed_sizes(8, 64))
    while driver.runner.work_ahead():
        pass
    driver.add(*(make_request(name, 9, temperature=0.0) for name in "abcd"))
    driver.step(dict.fromkeys("abcd", 9))
    assert steps._inputs.samples[:4].tolist() == [8, 17, 26, 35]
    driver.free("d")
    driver.add(make_request("e", 9, temperature=0.0))
    driver.step({"e": 7})
    assert not steps._inputs.samples.any() and steps._inputs.token_ids[7:].max() == 0
    driver.step({"a": 64, "e": 64})
    assert steps._inputs.samples[:3].tolist() == [0, 2, 0]
    assert [len(driver.tokens[name]) for name in "ae"] == [2, 1]


def test_prompts_and_mixed_steps_are_not_captured(make_captured, make_request, gpu):
    driver, steps = make_captured()
    driver.add(make_request("a", 9, temperature=0.0))
    driver.step({"a": 64})
    driver.add(make_request("b", 9, temperature=0.0))
    driver.step({"a": 64, "b": 4})
    assert not steps._graphs and not steps._needed and gpu.replays == 0


def test_capturing_takes_a_bounded_share_of_the_time(make_captured, make_request, monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    driver, steps = make_captured(share=0.1)
    monkeypatch.setattr(captured, "time", clock)
    capture = steps._recorded

    def slowly(size, batch, expected):
        clock.now += 1.0
        return capture(size, batch, expected)

    monkeypatch.setattr(steps, "_recorded", slowly)
    decode(driver, make_request, 3)
    decode(driver, make_request, 1)
    assert plain(steps._graphs) == [4]
    clock.now = 10.9
    decode(driver, make_request, 1)
    assert plain(steps._graphs) == [4]
    clock.now = 11.1
    decode(driver, make_request, 1)
    assert plain(steps._graphs) == [4, 1]


def test_the_budget_ends_capturing(make_captured, make_request, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    driver, steps = make_captured(captured_bytes=2 * COST + 1)
    for count in (1, 2, 4, 8):
        decode(driver, make_request, count)
    assert plain(steps._graphs) == [1, 2, 4]
    assert "3 of 4 sizes of decode steps are captured" in caplog.text
    assert "others stay eager" in caplog.text
    assert not driver.runner.work_ahead()


def test_all_sizes_are_reported(make_captured, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    driver, _ = make_captured()
    while driver.runner.work_ahead():
        pass
    assert "All sizes of decode steps are captured" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("operation not permitted\nin detail"), "captured (operation not permitted)"),
        (torch.OutOfMemoryError("no"), "memory is short"),
    ],
)
def test_what_cannot_be_captured_stays_eager(
    error, words, make_captured, make_request, gpu, caplog
):
    caplog.set_level(logging.INFO, "pagoda")
    gpu.refuses = error
    driver, _ = make_captured()
    names = decode(driver, make_request, 2)
    assert [len(driver.tokens[name]) for name in names] == [3, 3]
    assert caplog.text.count(words) == 1
    assert gpu.replays == 0


def test_a_replay_that_differs_is_not_used(make_captured, make_request, gpu, caplog):
    gpu.broken = True
    driver, steps = make_captured()
    decode(driver, make_request, 2)
    assert gpu.replays == 1 and not steps._graphs
    assert "the replay of a step of" in caplog.text


def test_dropped_graphs_are_captured_anew(make_captured, make_request, gpu):
    """As before sleep, behind which weights and caches lie elsewhere."""
    driver, steps = make_captured()
    driver.add(*(make_request(name, 9, temperature=0.0) for name in "abc"))
    driver.finish(["a", "b", "c"], 4)
    inputs = steps._inputs
    driver.runner.replays.drop()
    assert not steps._graphs and steps._maker is None
    before = gpu.replays
    driver.finish(["a", "b", "c"], 5)
    assert gpu.replays == before + 1  # the check of what was captured anew
    driver.finish(["a", "b", "c"], 8)
    assert gpu.replays > before + 1 and steps._inputs is not inputs


@pytest.mark.parametrize("changed", [False, True])
def test_graphs_come_before_tiles(changed, make_captured, make_request, gpu):
    """Measuring takes minutes. Graphs from before hold kernels with other tiles, and are captured
    again if these are better."""
    gpu.tiles = Tiles(3, changed)
    driver, steps = make_captured()
    decode(driver, make_request, 3)
    assert plain(steps.captured) == [4]
    graph = steps._graphs[CapturedSize(4, 4)]
    while gpu.tiles.left == 3:
        assert driver.runner.work_ahead()
    assert set(plain(steps.captured)) == {1, 2, 4, 8}
    while driver.runner.work_ahead():
        pass
    assert gpu.tiles.left == 0 and set(plain(steps.captured)) == {1, 2, 4, 8}
    assert (steps._graphs[CapturedSize(4, 4)] is graph) is not changed


def test_usual_sizes_are_captured_before_the_engine_is_ready(make_captured, gpu):
    driver, steps = make_captured(captured_sizes=GUESSES, captured_bytes=10**9)
    driver.runner.warm_up()
    steps = driver.runner.replays.program
    assert set(steps.captured) == set(usual_sizes(GUESSES))
    assert usual_sizes(captured_sizes(64)) == captured_sizes(64)[:7]
    usual = {size[:2] for size in usual_sizes(GUESSES)}
    assert usual > {(1, 1), (8, 8), (1, 5)} and (2, 4) not in usual


def test_a_start_does_not_wait_for_slow_captures(make_captured, monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    _, steps = make_captured()
    monkeypatch.setattr(captured, "time", clock)
    capture = steps._graph_of

    def slowly(size):
        clock.now += 20.0
        return capture(size)

    monkeypatch.setattr(steps, "_graph_of", slowly)
    steps.capture_usual()
    assert plain(steps.captured) == [1, 2]


@pytest.mark.parametrize("error", [RuntimeError("no"), torch.OutOfMemoryError("no")])
def test_a_size_that_fails_is_left_out_alone(error, make_captured, make_request, gpu, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    gpu.refuses, gpu.refused = error, {1}
    driver, steps = make_captured()
    steps.capture_usual()
    assert plain(steps.captured) == [1, 4, 8] and plain(steps.failed) == [2]
    assert "3 of 4 sizes of decode steps are captured" in caplog.text
    before = gpu.replays
    names = decode(driver, make_request, 2)
    assert [len(driver.tokens[name]) for name in names] == [3, 3] and gpu.replays == before
    assert not driver.runner.work_ahead()  # and it is not tried again
    driver.runner.replays.drop()
    steps.capture_usual()
    assert plain(steps.captured) == [1, 2, 4, 8]


def test_memory_of_the_step_itself_is_not_the_graphs(make_captured, gpu, monkeypatch):
    _, steps = make_captured()
    first_pass = steps._first_pass

    def hungry(size):
        gpu.free -= 10**6
        return first_pass(size)

    monkeypatch.setattr(steps, "_first_pass", hungry)
    steps.capture_usual()
    assert steps.budget.spent == 4 * COST


def test_capturing_in_the_middle_of_a_run(make_captured, make_driver, make_request):
    """It takes the memory in which the run's arrays lie."""
    driver, steps = make_captured()
    eager = make_driver(max_num_reqs=8)
    for each in (driver, eager):
        each.add(*(make_request(name, 9, temperature=0.0) for name in "abc"))
        each.finish(list("abc"), 6)
        each.finish(list("abc"), 8)
        steps._needed[CapturedSize(8, 8)] = None  # by earlier steps, while capturing was to wait
        each.finish(list("abc"), 14)
    assert plain(steps._graphs) == [4, 8]
    assert driver.tokens == eager.tokens


def test_nothing_is_captured_where_it_is_not_wanted(make_driver, gpu):
    def record(**changes):
        sizes = captured_sizes(4)
        runner = make_driver(device=gpu, captured_sizes=sizes, **changes).runner
        runner.record()
        return runner.replays.program

    assert record(captured_bytes=1, eager=True) is None
    assert record(captured_bytes=0) is None
    assert isinstance(record(captured_bytes=1), CapturedSteps)


def test_steps_from_before_do_not_show_in_padding(make_captured, make_request):
    """A step of four leaves slots behind; a padded one of three must not write there."""
    driver, steps = make_captured()
    driver.add(*(make_request(name, 9, temperature=0.0) for name in "abcd"))
    driver.finish(list("abcd"), 4)
    driver.finish(list("abc"), 9)
    assert plain(steps._graphs) == [4]
    prompt = driver.requests["d"].prompt_token_ids
    driver.finish(["d"], 9)
    # CacheModel itself asserts that each stored position is its own.
    assert len(driver.tokens["d"]) == 9 and len(prompt) == 9
    assert np.all(steps._inputs.groups[0].slot_mapping[1:] == 0)


def test_a_graph_is_captured_beside_the_stream(monkeypatch):
    calls = []

    class Fake:
        def capture_begin(self, pool, capture_error_mode):
            calls.append(("begin", pool, capture_error_mode))

        def capture_end(self):
            calls.append("end")

        def reset(self):
            calls.append("reset")

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            calls.append((self.name, "waits for", other.name))

    current = Stream("current")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Fake)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    make = CudaGraphs(torch.device("cpu"))
    make(lambda: calls.append("work"))
    assert calls == [
        ("side", "waits for", "current"), ("begin", "pool", "thread_local"), "work", "end",
        ("current", "waits for", "side"),
    ]  # fmt: skip
    calls.clear()
    with pytest.raises(RuntimeError, match="wrong"):
        make(lambda: (_ for _ in ()).throw(RuntimeError("wrong")))
    assert calls[-1] == "end"


def test_long_prompts_are_padded(make_captured, make_driver, make_request):
    """Beside a stream; the last steps are of other tokens than are captured."""
    limits = {"max_num_batched_tokens": 1536, "max_model_len": 1024}
    sizes = tuple(size for size in mixed_sizes(8, 1536) if size.tokens > 512)
    driver, steps = make_captured(captured_sizes=(*captured_sizes(8), *sizes), **limits)
    while driver.runner.work_ahead():
        pass
    expected = make_driver(max_num_reqs=8, **limits)
    for each in (driver, expected):
        each.add(make_request("a", 9, temperature=0.0))
        each.finish(["a"], 2)
        each.add(make_request("b", 530, temperature=0.0), make_request("c", 300, temperature=0.0))
        each.step({"a": 64, "b": 530, "c": 300})
        each.step(dict.fromkeys("abc", 64))
        each.free("b")
        each.add(make_request("d", 600, temperature=0.0))
        each.step({"a": 64, "c": 64, "d": 598})
        each.finish(["a", "c", "d"], 7)
    assert driver.tokens == expected.tokens
    assert not steps._needed, "all were replayed"
    assert steps._size_of(3, 831, 3) == CapturedSize(8, 896, prompts=True)
