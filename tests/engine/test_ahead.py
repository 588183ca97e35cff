"""An engine that plans while a step runs gives what one that waits gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.arch.spec import ModelSpec
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.messages import AbortRequests, Utility
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import DeviceExecutor, LocalExecutor
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.runner import ModelRunner
from tests.engine.mock_runner import request
from tests.runtime.conftest import VOCAB, WINDOW, CacheModel
from tests.runtime.test_ahead import LateDevice

CONTEXT = 40
MODEL = CacheModel()
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0.0, "frequency_penalty": 1.0},
    {"temperature": 0.0, "logprobs": 1},
]


def make_core(device: CpuDevice, num_slabs: int) -> EngineCore:
    spec = ModelSpec("Cache", VOCAB, 32, (), 1e-5, True, CONTEXT, "float32", ())
    groups = [
        KVGroupSpec("full", (0,), 1, 1, 4, kv_dtype="float32"),
        KVGroupSpec("sliding", (1,), 1, 1, 4, WINDOW, "float32"),
    ]
    runner = ModelRunner(MODEL, spec, groups, num_slabs, device, 4, 24, CONTEXT)
    scheduler = Scheduler(SchedulerLimits(4, 24, CONTEXT), KVCacheManager(groups, num_slabs))
    executor = DeviceExecutor(runner) if device.runs_ahead else LocalExecutor(runner)
    return EngineCore(scheduler, executor)


def play(core: EngineCore, script: list[tuple[Any, ...]]) -> dict[str, tuple[list[int], str]]:
    """Each request's tokens and why it ended."""
    tokens: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}

    def step() -> None:
        for delta in core.step():
            assert delta.req_id not in reasons, "nothing comes after the end"
            tokens[delta.req_id] += delta.token_ids
            if delta.finish_reason is not None:
                reasons[delta.req_id] = delta.finish_reason
        core.scheduler.check_integrity()

    for what, *values in script:
        if what == "add":
            first, length, max_tokens, kind = values
            name = f"r{len(tokens)}"
            tokens[name] = []
            prompt = [(first + 3 * i) % (VOCAB - 1) for i in range(length)]
            stops = list(range(0, VOCAB, 9))
            core.handle(
                request(name, prompt, max_tokens=max_tokens, stop_token_ids=stops, **SAMPLING[kind])
            )
        elif what == "abort" and tokens:
            core.handle(AbortRequests([f"r{values[0] % len(tokens)}"]))
        elif what == "steps":
            for _ in range(values[0]):
                step()
    for _ in range(2000):
        if not core.has_work():
            break
        step()
    assert reasons.keys() == tokens.keys(), "every request ends"
    stats = core.stats()
    assert stats.blocks_free == stats.blocks_total
    return {name: (tokens[name], reasons[name]) for name in tokens}


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 40), st.integers(1, 30), st.integers(1, 20),
              st.integers(0, len(SAMPLING) - 1)),
    st.tuples(st.just("add"), st.just(0), st.sampled_from([9, 17]), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("steps"), st.integers(1, 6)),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    script=st.lists(OPERATIONS, min_size=3, max_size=14), num_slabs=st.sampled_from([24, 30, 60])
)
def test_outputs_are_those_of_an_engine_that_waits(script, num_slabs):
    waiting = play(make_core(CpuDevice(), num_slabs), script)
    ahead = play(make_core(LateDevice(), num_slabs), script)
    for name, (tokens, reason) in waiting.items():
        found, found_reason = ahead[name]
        if "abort" in (reason, found_reason):
            short = min(len(tokens), len(found))
            assert tokens[:short] == found[:short]
        else:
            assert (found, found_reason) == (tokens, reason)


def test_small_pools_preempt_in_flight():
    """What the property stands on: preemptions happen, and change nothing."""
    script = [("add", i, 8, 20, i % 2) for i in range(6)] + [("steps", 5)]
    cores = [make_core(device, 24) for device in (CpuDevice(), LateDevice())]
    waiting, ahead = (play(core, script) for core in cores)
    assert ahead == waiting
    assert cores[1].stats().num_preemptions > 0


def test_a_failed_launch_ends_its_requests_alone():
    core = make_core(LateDevice(), 60)
    for name in ("a", "b"):
        core.handle(request(name, [1, 2, 3], max_tokens=9))
    core.step()
    launch = core.executor.runner.launch

    def fail(plan):
        core.executor.runner.launch = launch
        raise OSError("the device hiccuped")

    core.executor.runner.launch = fail
    deltas = [delta for _ in range(6) for delta in core.step()]
    assert [d.error for d in deltas if d.error] == ["OSError: the device hiccuped"] * 2
    core.handle(request("c", [4, 5, 6], max_tokens=3))
    deltas = [delta for _ in range(9) for delta in core.step()]
    assert [d.finish_reason for d in deltas if d.finish_reason] in (["length"], ["stop"])
    core.scheduler.check_integrity()


@pytest.mark.parametrize("device", [CpuDevice, LateDevice])
def test_sleep_ends_requests_in_any_state_and_frees_every_block(device):
    core = make_core(device(), 60)
    expected = play(make_core(device(), 60), [("add", 1, 9, 6, 0)])["r0"]
    for number in range(6):  # more than run at once
        core.handle(request(f"q{number}", list(range(20)), max_tokens=9, ignore_eos=True))
    for _ in range(3):
        core.step()
    assert core.handle(Utility(1, "sleep")).error is None
    ended = {delta.req_id: delta.finish_reason for delta in core.step() if delta.finish_reason}
    assert ended == {f"q{number}": "abort" for number in range(6)}
    stats = core.stats()
    assert stats.blocks_free == stats.blocks_total and not core.has_work()
    core.handle(request("asleep", [1, 2, 3]))
    assert "sleeps" in next(iter(core.step())).error
    core._when_idle = lambda: pytest.fail("what later steps need is not there")
    assert not core.when_idle()
    for _ in range(2):
        assert core.handle(Utility(2, "wake_up")).error is None
    assert play(core, [("add", 1, 9, 6, 0)])["r0"] == expected
