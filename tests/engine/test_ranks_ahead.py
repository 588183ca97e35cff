"""Two ranks on GPUs that tests play: planned ahead, captured, put to sleep, and ended."""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import DeviceConfig
from pagoda.core.messages import AbortRequests, Utility
from pagoda.engine.core import EngineCore
from pagoda.engine.ranks import executor as ranks
from pagoda.engine.ranks.starter import LocalStarter
from pagoda.engine.startup import start_engine
from pagoda.runtime import device as devices
from pagoda.runtime.steps import captured
from tests.engine.gpu_rank import PlayedGpu
from tests.engine.running import run, tokens
from tests.engine.test_ranks import are_gone, cached, config_of, expected, processes, request
from tests.models import tiny

ROOT = Path(__file__).parents[2]
PROMPTS = {f"r{i}": tiny.random_ids(40, seed=i) for i in range(5)}


@pytest.fixture(scope="module")
def reference():
    return tiny.make("llama")


@pytest.fixture(scope="module")
def gpu() -> PlayedGpu:
    return PlayedGpu()


@pytest.fixture(scope="module")
def core(reference, gpu, tmp_path_factory) -> Iterator[EngineCore]:
    """With too few blocks for all prompts and their replies."""
    folder = tmp_path_factory.mktemp("llama")
    reference.save_pretrained(folder)
    config = config_of(folder, 2, slabs=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.setattr(captured, "_SHARE", 1e9)
        patch.setattr(devices, "make_device", lambda name, index: gpu)
        patch.setattr(ranks, "LocalStarter", partial(LocalStarter, module="tests.engine.gpu_rank"))
        cache = replace(config.cache, block_size=16)  # by default a GPU's are larger
        config = replace(config, device=DeviceConfig("cuda"), cache=cache)
        core, _ = start_engine(config, lambda message: None)
        yield core
        core.shutdown()


def test_preemptions_and_prefix_hits_change_nothing(core, gpu, reference):
    deltas = run(core, *(request(name, prompt) for name, prompt in PROMPTS.items()))
    for name, prompt in PROMPTS.items():
        assert tokens(deltas[name]) == expected(reference, prompt), name
    assert any(deltas[name][-1].num_preemptions for name in PROMPTS)
    assert core.executor.steps_in_flight == 2 and gpu.replays > 10
    while core.when_idle():
        pass
    (again,) = run(core, request("again", PROMPTS["r4"])).values()
    assert cached(again) >= 32 and tokens(again) == tokens(deltas["r4"])


def test_aborts_in_flight_end_their_requests_alone(core, reference):
    deltas = defaultdict(list)

    def step() -> None:
        for delta in core.step():
            deltas[delta.req_id].append(delta)
        core.scheduler.check_integrity()

    for name in ("r0", "r1", "r2"):
        core.handle(request(name, PROMPTS[name]))
    core.handle(request("drawn", PROMPTS["r3"], temperature=0.9, seed=5, presence_penalty=0.5))
    for _ in range(5):
        step()
    core.handle(AbortRequests(["r1", "drawn"]))
    core.handle(request("next", PROMPTS["r3"]))
    while core.has_work():
        step()
    assert [deltas[name][-1].finish_reason for name in ("r1", "drawn")] == ["abort"] * 2
    for name, like in (("r0", "r0"), ("r2", "r2"), ("next", "r3")):
        assert tokens(deltas[name]) == expected(reference, PROMPTS[like])


def test_sleep_drops_what_was_captured(core, gpu, reference):
    assert core.handle(Utility(1, "sleep")).error is None
    assert not core.when_idle()
    assert core.handle(Utility(2, "wake_up")).error is None
    before = gpu.replays
    (deltas,) = run(core, request("r", PROMPTS["r2"])).values()
    assert tokens(deltas) == expected(reference, PROMPTS["r2"]) and cached(deltas) == 0
    assert gpu.replays > before


def test_a_killed_rank_ends_the_steps_in_flight(core):
    """The last test: it takes the engine along."""
    pids = processes(core)
    core.handle(request("killed", PROMPTS["r0"]))
    for _ in range(4):
        core.step()
    assert core._in_flight
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="The process of rank 1 was ended by SIGKILL"):
        while True:
            core.step()
    for look in (core.when_idle, core.executor.check, core.step):
        with pytest.raises(EngineDeadError, match="rank 1 was ended by SIGKILL"):
            look()
    assert are_gone(pids)
