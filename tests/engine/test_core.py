import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pagoda.base.errors import EngineDeadError, RequestError
from pagoda.core.messages import AbortRequests, AddRequest, Utility, is_progress
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from tests.engine.mock_runner import (
    CountingRunner,
    LateExecutor,
    make_scheduler,
    request,
    run,
    tokens_of,
)


def make_core(**limits) -> tuple[EngineCore, CountingRunner]:
    runner = CountingRunner()
    return EngineCore(make_scheduler(**limits), LocalExecutor(runner)), runner


def assert_all_blocks_free(core: EngineCore) -> None:
    stats = core.stats()
    assert stats.blocks_free == stats.blocks_total > 0
    core.scheduler.check_integrity()


def test_requests_of_a_batch_each_count_on():
    core, _ = make_core()
    for start in range(12):  # more than run at once
        core.handle(request(f"r{start}", list(range(start, start + 9))))
    deltas = run(core)
    for start in range(12):
        assert tokens_of(deltas[f"r{start}"]) == [start + 9 + i for i in range(5)]
        told = [d.finish_reason for d in deltas[f"r{start}"] if not is_progress(d)]
        assert told == [None] * 4 + ["length"]
    assert_all_blocks_free(core)


@pytest.mark.parametrize("executor", [LocalExecutor, LateExecutor])
def test_a_long_prompt_tells_how_far_it_is(executor):
    core = EngineCore(make_scheduler(max_model_len=128), executor(CountingRunner()))
    core.handle(request("first", list(range(90)), max_tokens=1))
    deltas = run(core)["first"]
    assert [d.prompt_progress for d in deltas] == [(32, 0), (64, 0), None]
    assert all(map(is_progress, deltas[:-1])) and tokens_of(deltas) == [90]
    # What is found in the cache was there before.
    core.handle(request("second", [*range(40), *range(50)], max_tokens=1))
    *progress, last = run(core)["second"]
    assert [d.prompt_progress for d in progress] == [(72, 40)]
    assert last.num_cached_tokens == 40 and last.prompt_progress is None
    core.handle(request("short", list(range(9)), max_tokens=1))
    assert [d.prompt_progress for d in run(core)["short"]] == [None]


def test_results_that_come_a_plan_late_give_the_same_tokens():
    runner = CountingRunner()
    executor = LateExecutor(runner)
    core = EngineCore(make_scheduler(), executor)
    for start in range(5):
        core.handle(request(f"r{start}", list(range(start, start + 9))))
    core.handle(request("stops", [10, 11], stop_token_ids=[14]))
    deltas = run(core)
    assert executor.most_waiting == 2
    for start in range(5):
        assert tokens_of(deltas[f"r{start}"]) == [start + 9 + i for i in range(5)]
    assert tokens_of(deltas["stops"]) == [12, 13, 14]
    assert deltas["stops"][-1].stop_reason == 14
    assert_all_blocks_free(core)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_scheduler_is_told_what_each_step_took(depth, monkeypatch):
    """In flight behind another, a step begins when that one ends."""
    clock = [100.0]
    monkeypatch.setattr("pagoda.engine.core.time.perf_counter", lambda: clock[0])

    class SlowRunner(CountingRunner):
        def execute(self, plan):
            clock[0] += 0.25
            return super().execute(plan)

    executor = LocalExecutor(SlowRunner()) if depth == 1 else LateExecutor(SlowRunner())
    core = EngineCore(make_scheduler(), executor)
    told = []
    commit = core.scheduler.commit
    core.scheduler.commit = lambda plan, result, seconds: (
        told.append(seconds) or commit(plan, result, seconds)
    )
    core.handle(request("a", [1, 2, 3]))
    run(core)
    assert told == [0.25] * 5


def test_abort_between_plan_and_late_result():
    core = EngineCore(make_scheduler(), LateExecutor(CountingRunner()))
    core.handle(request("a", [1, 2, 3], max_tokens=40))
    core.handle(request("b", [4, 5, 6], max_tokens=10))
    for _ in range(4):
        core.step()
    core.handle(AbortRequests(["a", "never heard of"]))
    deltas = run(core)
    assert [d.finish_reason for d in deltas["a"]] == ["abort"]
    assert tokens_of(deltas["b"])[-1] == 16
    assert_all_blocks_free(core)


def test_abort_frees_blocks_in_mid_stream():
    core, _ = make_core()
    core.handle(request("a", list(range(20)), max_tokens=40))
    for _ in range(3):
        core.step()
    assert core.stats().blocks_free < core.stats().blocks_total
    core.handle(AbortRequests(["a"]))
    assert [d.finish_reason for d in core.step()] == ["abort"]
    assert_all_blocks_free(core)


def test_a_bad_request_fails_alone():
    core, _ = make_core()
    core.handle(request("good", [1, 2, 3]))
    core.handle(request("long", list(range(65))))
    deltas = run(core)
    assert "65" in deltas["long"][0].error and deltas["long"][0].bad_request
    assert tokens_of(deltas["good"]) == [4, 5, 6, 7, 8]


def test_a_runner_fault_ends_the_requests_of_its_step_only():
    core, runner = make_core(max_num_reqs=2)
    runner.failures = [None, OSError("the device hiccuped")]
    for name in "abc":
        core.handle(request(name, [1, 2, 3]))
    deltas = run(core)
    for name in "ab":
        assert deltas[name][-1].finish_reason == "error"
        assert deltas[name][-1].error == "OSError: the device hiccuped"
    assert tokens_of(deltas["c"]) == [4, 5, 6, 7, 8]
    assert_all_blocks_free(core)


def test_two_faults_in_a_row_end_the_engine_with_the_root_cause():
    core, runner = make_core(max_num_reqs=1)
    runner.failures = [OSError("lost"), OSError("the device is gone")]
    core.handle(request("a", [1]))
    core.handle(request("b", [1]))
    with pytest.raises(EngineDeadError, match="the device is gone"):
        run(core)


def test_request_faults_never_end_the_engine():
    core, runner = make_core(max_num_reqs=1)
    runner.failures = [RequestError("no such adapter")] * 3
    for name in "abcd":
        core.handle(request(name, [1]))
    deltas = run(core)
    assert [deltas[name][0].error for name in "abc"] == ["no such adapter"] * 3
    assert tokens_of(deltas["d"]) == [2, 3, 4, 5, 6]


def test_an_interrupt_in_mid_step_leaves_a_usable_engine():
    core, runner = make_core()
    runner.failures = [None, KeyboardInterrupt()]
    core.handle(request("a", [1, 2, 3]))
    core.step()
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.handle(request("b", [5]))
    deltas = run(core)
    assert deltas["a"][-1].finish_reason == "error"
    assert tokens_of(deltas["b"]) == [6, 7, 8, 9, 10]
    assert_all_blocks_free(core)


def test_utilities():
    core, _ = make_core()
    assert core.handle(Utility(1, "reset_prefix_cache")).result is True
    assert "reset_prefix_cache" in core.handle(Utility(2, "launch_missiles")).error
    assert core.handle(Utility(3, "stats", ["too many"])).error.startswith("TypeError")


class GatedGrammars:
    """Grammars that are compiled once `gate` opens; those that say so are wrong."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def compile(self, grammar: str) -> "Future[None]":
        return self._pool.submit(self._compile, grammar)

    def _compile(self, grammar: str) -> None:
        assert self.gate.wait(10)
        if grammar == "wrong":
            raise RequestError("The grammar is wrong.")


def constrained(req_id: str, grammar: str) -> AddRequest:
    message = request(req_id, [1, 2, 3])
    message.grammar = grammar
    return message


def test_a_request_waits_for_its_grammar_and_nobody_for_it():
    grammars = GatedGrammars()
    core = EngineCore(make_scheduler(), LocalExecutor(CountingRunner()), grammars=grammars)
    core.handle(constrained("waits", "right"))
    core.handle(constrained("wrong", "wrong"))
    core.handle(constrained("gone", "right"))
    core.handle(request("plain", [10]))
    deltas = [delta for _ in range(20) for delta in core.step()]
    assert tokens_of(deltas) == [11, 12, 13, 14, 15]
    assert core.has_work() and core.stalled
    core.handle(AbortRequests(["gone"]))
    grammars.gate.set()
    deltas = run(core, steps=10_000_000)
    assert tokens_of(deltas["waits"]) == [4, 5, 6, 7, 8]
    assert [d.finish_reason for d in deltas["gone"]] == ["abort"]
    (refused,) = deltas["wrong"]
    assert (refused.error, refused.bad_request) == ("The grammar is wrong.", True)
    assert_all_blocks_free(core)


def test_an_engine_without_grammars_refuses_them():
    core, _ = make_core()
    core.handle(constrained("a", "right"))
    (refused,) = run(core)["a"]
    assert refused.bad_request and "no grammars" in (refused.error or "")


def test_a_grammar_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr("pagoda.engine.core._COMPILE_SECONDS", 0.05)
    grammars = GatedGrammars()
    core = EngineCore(make_scheduler(), LocalExecutor(CountingRunner()), grammars=grammars)
    core.handle(constrained("slow", "right"))
    (refused,) = run(core, steps=10_000_000)["slow"]
    assert refused.bad_request and "could not be prepared" in (refused.error or "")
    grammars.gate.set()
    assert_all_blocks_free(core)
