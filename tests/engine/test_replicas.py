"""Several engines as one: where requests go, and what becomes of them when engines die."""

import asyncio
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from pagoda.base.errors import (
    EngineAsleepError,
    EngineDeadError,
    QueueFullError,
    RequestError,
)
from pagoda.base.facts import DeviceFacts
from pagoda.config.adapters import AdapterConfig
from pagoda.config.engine import EngineConfig, ParallelConfig, SchedulerConfig
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    Deltas,
    EngineStats,
    LoadedAdapter,
    RequestDelta,
    StepOutputs,
    Utility,
    UtilityResult,
)
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.replicas import launch
from pagoda.engine.replicas.group import Replicas
from pagoda.engine.replicas.replica import Replica
from pagoda.engine.requests import fan_out
from pagoda.engine.start.planned import _left_by_others
from pagoda.planner.parallel import replica_part
from tests.engine.fake_child import READY, FakeChild, error_of, request, sent
from tests.virtual_time import in_virtual_time


class Rig:
    def __init__(self, folder, count=2, restarts=5, config=None):
        self.children: list[list[FakeChild]] = [[] for _ in range(count)]
        """The processes of each engine."""

        def spawner(index):
            def spawn(config, options):
                number = len(self.children[index])
                self.children[index].append(FakeChild(folder / f"{index}-{number}"))
                return self.children[index][-1]

            return spawn

        config = config or EngineConfig()
        options = LaunchOptions(supervision=SupervisionLimits(0, restarts))
        engines = [Replica(config, options, spawner(index)) for index in range(count)]
        self.client = Replicas(config, engines)

    def child(self, index) -> FakeChild:
        return self.children[index][-1]

    async def serve(self, *indexes, ready=READY):
        for index in indexes or range(len(self.children)):
            self.client.engines[index]._attach()
            self.child(index).say(ready)
        await asyncio.sleep(0.01)
        if not indexes:
            await self.client.wait_ready(1, lambda step: None)

    async def die(self, index, seconds=0.2):
        self.child(index).exit(1)
        await asyncio.sleep(seconds)

    async def say(self, index, req_id, *tokens, **fields):
        one = RequestDelta(req_id=req_id, token_ids=list(tokens), **fields)
        self.child(index).say(StepOutputs(Deltas([one]), EngineStats()))
        await asyncio.sleep(0.01)

    def sent(self, index) -> list[str]:
        return sent(self.child(index))

    def request_at(self, index, req_id) -> AddRequest:
        found = [m for m in self.child(index).sent if isinstance(m, AddRequest)]
        return next(m for m in found if m.req_id == req_id)


def tokens(inbox) -> list[int]:
    return [token for delta in inbox.take() for token in delta.token_ids]


@in_virtual_time
async def test_requests_are_dealt_out_and_those_with_a_prefix_follow_it(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    assert rig.client.ready.max_num_seqs == 2 * READY.max_num_seqs
    prompts = {"a": [1] * 9, "b": [2] * 9, "b2": [2] * 9, "a2": [1] * 9}
    for name, ids in prompts.items():
        rig.client.submit([AddRequest(req_id=name, prompt_token_ids=ids)])
        for index in (0, 1):
            if name in rig.sent(index) and "2" not in name:
                await rig.say(index, name, 5, num_cached_tokens=0)
    assert rig.sent(0) == ["a", "a2"] and rig.sent(1) == ["b", "b2"]
    rig.client.drop(prompts)
    assert rig.client.num_running == 0
    assert rig.client._dispatch._prompt_tokens == [0, 0]
    await rig.client.shutdown()


@in_virtual_time
async def test_choices_of_a_prompt_stay_together_and_prompts_part(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    one, two = request("one"), request("two")
    inbox = rig.client.submit([*fan_out(one, 2), *fan_out(two, 2)])
    assert rig.sent(0) == ["one-0", "one-1"] and rig.sent(1) == ["two-0", "two-1"]
    await rig.say(1, "two-1", 5, finish_reason="stop")
    await rig.say(0, "one-0", 6, finish_reason="stop")
    assert sorted(tokens(inbox)) == [5, 6]
    rig.client.drop(["one-1", "two-0"])
    assert AbortRequests(["one-1"]) in rig.child(0).sent
    assert AbortRequests(["two-0"]) in rig.child(1).sent
    await rig.client.shutdown()


@in_virtual_time
async def test_a_stream_goes_on_where_it_was_when_its_engine_dies(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("stream")])
    await rig.say(0, "stream", 5, num_cached_tokens=0, queue_seconds=0.1)
    assert tokens(inbox) == [5]
    await rig.say(0, "stream", 6, 7)  # nobody has read it yet
    await rig.die(0)
    assert rig.client.state == "ready" and rig.client.cause is None
    assert rig.sent(1) == ["stream"]
    assert rig.request_at(1, "stream").prediction_token_ids == [5, 6, 7]
    await rig.say(1, "stream", prompt_progress=(2, 0))
    await rig.say(1, "stream", 5, num_cached_tokens=2, queue_seconds=0.2)
    await rig.say(1, "stream", 6, 7, 8)
    await rig.say(1, "stream", 9, finish_reason="length")
    (delta,) = inbox.take()
    assert delta.token_ids == [6, 7, 8, 9] and delta.finish_reason == "length"
    assert delta.num_cached_tokens is None and delta.queue_seconds is None, "told once"
    assert rig.client.num_running == 0
    assert rig.sent(0) == [], "its next process has nothing to do"
    await rig.client.shutdown()


@in_virtual_time
async def test_the_next_process_hears_that_the_others_serve(tmp_path):
    config = EngineConfig(parallel=ParallelConfig(data_parallel_size=2))
    started: list[MemoryRoom] = []

    def spawn(config, options):
        started.append(options.room)
        return FakeChild(tmp_path / str(len(started)))

    engines = [
        Replica(config, LaunchOptions(room=MemoryRoom(replica=index)), spawn) for index in (0, 1)
    ]
    client = Replicas(config, engines)
    for engine in engines:
        engine._attach()
        engine._child.say(READY)
    await client.wait_ready(1, lambda step: None)
    engines[1]._child.exit(1)
    await asyncio.sleep(0.2)
    assert [(room.replica, room.siblings) for room in started] == [(0, 0), (1, 0), (1, 2)]
    await client.shutdown()


@in_virtual_time
async def test_log_probabilities_are_told_once(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("stream")])
    await rig.say(0, "stream", prompt_logprobs=[None, "p1"], num_cached_tokens=0)
    await rig.say(0, "stream", 5, prompt_logprobs=["p2"], logprobs=["l5"])
    inbox.take()
    await rig.die(0)
    await rig.say(1, "stream", prompt_logprobs=[None, "p1", "p2"])
    await rig.say(1, "stream", 5, 6, logprobs=["l5", "l6"], finish_reason="stop")
    (delta,) = inbox.take()
    assert delta.token_ids == [6] and delta.logprobs == ["l6"] and delta.prompt_logprobs is None
    await rig.client.shutdown()


@pytest.mark.parametrize("again", [([5, 9],), ([5],)], ids=["other tokens", "fewer tokens"])
@in_virtual_time
async def test_a_stream_that_does_not_come_out_the_same_ends_with_an_error(tmp_path, again):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("stream")])
    await rig.say(0, "stream", 5, 6)
    assert tokens(inbox) == [5, 6]
    await rig.die(0)
    await rig.say(1, "stream", *again[0], finish_reason="stop")
    assert "did not give the same tokens" in await error_of(inbox)
    assert rig.client.num_running == 0
    await rig.client.shutdown()


@in_virtual_time
async def test_requests_that_wait_go_elsewhere_with_their_pictures(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    pixels = {"cat": np.zeros((1, 2, 2, 3), np.uint8)}
    inbox = rig.client.submit([request("cat", "cat")], pixels)
    await rig.die(0)
    (item,) = rig.request_at(1, "cat").media
    assert item.payload == str(rig.child(1).folder / "cat.npy")
    assert np.load(item.payload).shape == (1, 2, 2, 3)
    await rig.say(1, "cat", 5, num_cached_tokens=0, finish_reason="stop")
    (delta,) = inbox.take()
    assert delta.token_ids == [5] and delta.num_cached_tokens == 0
    assert list(rig.child(1).folder.iterdir()) == []
    await rig.client.shutdown()


@in_virtual_time
async def test_without_another_engine_requests_wait_for_the_next_process(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    await rig.die(1)
    inbox = rig.client.submit([request("stream")])
    await rig.say(0, "stream", 5)
    await rig.die(0)
    assert rig.client.state == "starting" and "exit status 1" in rig.client.cause
    with pytest.raises(EngineDeadError, match=r"starting \(phase: launch\) after it died"):
        rig.client.submit([request("new")])
    await rig.serve(1)
    assert rig.sent(1) == ["stream"] and rig.client.state == "ready"
    await rig.say(1, "stream", 5, 6, finish_reason="stop")
    assert tokens(inbox) == [5, 6]
    await rig.client.shutdown()


@in_virtual_time
async def test_a_request_inside_of_two_deaths_ends_and_the_others_go_on(tmp_path):
    rig = Rig(tmp_path, count=3)
    await rig.serve()
    inbox = rig.client.submit([request("suspect")])
    await rig.die(0)
    assert rig.sent(1) == ["suspect"]
    await rig.die(2)
    beside = rig.client.submit([request("beside")])
    await rig.serve(2)
    await rig.die(1)
    assert "exit status 1" in await error_of(inbox)
    assert rig.sent(2) == ["beside"]
    await rig.say(2, "beside", 5, finish_reason="stop")
    assert tokens(beside) == [5]
    await rig.client.shutdown()


@in_virtual_time
async def test_a_stream_that_comes_on_survives_any_number_of_deaths(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    inbox = rig.client.submit([request("stream")])
    told = [5]
    await rig.say(0, "stream", 5)
    for number in range(4):
        here, there = number % 2, 1 - number % 2
        await rig.die(here, seconds=5)
        assert rig.sent(there) == ["stream"]
        told.append(6 + number)
        await rig.say(there, "stream", *told)
        await rig.serve(here)
    assert tokens(inbox) == told
    await rig.client.shutdown()


@in_virtual_time
async def test_all_given_up_ends_what_waits_and_one_given_up_does_not(tmp_path):
    rig = Rig(tmp_path, restarts=0)
    await rig.serve()
    inbox = rig.client.submit([request("stream")])
    await rig.die(0)
    assert rig.client.engines[0].state == "dead" and rig.client.state == "ready"
    assert rig.client.died_at is None and rig.sent(1) == ["stream"]
    ended = asyncio.ensure_future(rig.client.wait_end())
    await rig.die(1)
    assert rig.client.state == "dead" and rig.client.died_at is not None and ended.done()
    assert "exit status 1" in await error_of(inbox)
    with pytest.raises(EngineDeadError, match="exit status 1"):
        rig.client.submit([request("new")])
    assert all(child.closed for each in rig.children for child in each)
    await rig.client.shutdown()


@in_virtual_time
async def test_calls_reach_all_engines_and_the_worst_answer_counts(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    calling = asyncio.create_task(rig.client.call("reset_prefix_cache"))
    await asyncio.sleep(0.01)
    for index, answer in ((0, True), (1, False)):
        (call,) = rig.child(index).sent
        rig.child(index).say(UtilityResult(call.call_id, answer))
    assert await calling is False
    sleeping = asyncio.create_task(rig.client.sleep())
    await asyncio.sleep(0.01)
    for index in (0, 1):
        rig.child(index).say(UtilityResult(rig.child(index).sent[-1].call_id))
    await sleeping
    assert rig.client.asleep
    with pytest.raises(EngineAsleepError):
        rig.client.submit([request("early")])
    await rig.die(1)
    await rig.serve(1)
    assert [(type(m), m.method) for m in rig.child(1).sent] == [(Utility, "sleep")]
    await rig.client.shutdown()


def called(child, method) -> list[Utility]:
    return [m for m in child.sent if isinstance(m, Utility) and m.method == method]


async def loads(rig, index, error=None):
    """The engine answers what it was asked last."""
    call = called(rig.child(index), "load_adapter")[-1]
    loaded = {"path": call.args[0], "identity": f"digest of {call.args[0]}", "rank": 8}
    rig.child(index).say(UtilityResult(call.call_id, None if error else loaded, error))
    await asyncio.sleep(0.01)


@in_virtual_time
async def test_an_adapter_is_loaded_by_all_engines_and_by_who_comes_back(tmp_path):
    rig = Rig(tmp_path, count=3)
    await rig.serve()
    await rig.die(2)
    loading = asyncio.create_task(rig.client.load_adapter("sql", "/sql"))
    await asyncio.sleep(0.01)
    assert called(rig.child(0), "load_adapter") and called(rig.child(1), "load_adapter")
    await rig.serve(2)  # too late to hear of the name, too early to be asked
    await loads(rig, 0)
    await loads(rig, 1)
    await loads(rig, 2)
    await loading
    assert rig.client.adapters.named["sql"].identity == "digest of /sql"
    await rig.die(1)
    await rig.serve(1)
    (again,) = called(rig.child(1), "load_adapter")
    assert again.args == ["/sql", "digest of /sql"]
    unloading = asyncio.create_task(rig.client.unload_adapter("sql"))
    await asyncio.sleep(0.01)
    for index in range(3):
        (call,) = called(rig.child(index), "unload_adapter")
        rig.child(index).say(UtilityResult(call.call_id))
    await unloading
    await rig.client.shutdown()


@in_virtual_time
async def test_adapters_of_the_start_have_their_names_at_all_engines(tmp_path):
    config = replace(EngineConfig(), adapters=AdapterConfig(lora_modules=("sql=/sql",)))
    rig = Rig(tmp_path, config=config)
    loaded = LoadedAdapter("/sql", "digest of /sql", 8)
    await rig.serve(ready=msgspec.structs.replace(READY, adapters=[loaded]))
    assert rig.client.adapters.named == {"sql": loaded}
    for index in (0, 1):
        assert all(m.args == ["/sql", loaded.identity] for m in rig.child(index).sent), "it has it"
    await rig.client.shutdown()


@in_virtual_time
async def test_an_adapter_that_one_engine_cannot_load_is_kept_by_none(tmp_path):
    rig = Rig(tmp_path)
    await rig.serve()
    loading = asyncio.create_task(rig.client.load_adapter("sql", "/sql"))
    await asyncio.sleep(0.01)
    await loads(rig, 0)
    await loads(rig, 1, error="All 2 adapters are in use.")
    for index, error in ((0, None), (1, "The adapter is not loaded.")):
        (call,) = called(rig.child(index), "unload_adapter")
        assert call.args == ["digest of /sql"]
        rig.child(index).say(UtilityResult(call.call_id, error=error))
    with pytest.raises(RequestError, match="in use"):
        await loading
    assert rig.client.adapters.named == {}
    await rig.client.shutdown()


def test_each_engine_has_its_part_of_what_was_free_before(monkeypatch):
    facts = DeviceFacts("cpu", total_memory=100, free_memory=60, num_threads=4)
    monkeypatch.setattr(launch, "cpu_facts", lambda: facts)
    config = replace(EngineConfig(), parallel=ParallelConfig(data_parallel_size=2))
    parts = launch.parts_of(MemoryRoom(reserved=20, limit=30), config)
    assert [(part.cpu_part, part.limit, part.reserved) for part in parts] == [(20, 15, 20)] * 2
    _, one = replica_part(config, facts)
    assert (one.total_memory, one.free_memory, one.num_threads) == (50, 30, 2)
    loaded = replace(one, free_memory=45)  # the first has taken its part
    assert _left_by_others(loaded, parts[1]).free_memory == 20


def test_each_engine_has_gpus_of_its_own(monkeypatch):
    facts = DeviceFacts("cuda", total_memory=80, free_memory=70, num_threads=9, host_memory=50)
    monkeypatch.setattr(launch, "cpu_facts", lambda: facts)
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=3)
    config = replace(EngineConfig(), parallel=parallel)
    parts = launch.parts_of(MemoryRoom(), config)
    assert [(part.first_gpu, part.replica) for part in parts] == [(0, 0), (2, 1), (4, 2)]
    _, one = replica_part(config, facts)
    assert (one.total_memory, one.free_memory) == (80, 70)
    assert (one.num_threads, one.host_memory) == (3, 16)


@in_virtual_time
async def test_a_full_queue_sends_a_request_to_the_next(tmp_path):
    limits = SchedulerConfig(max_num_queued_reqs=0)
    rig = Rig(tmp_path, config=replace(EngineConfig(), scheduler=limits))
    await rig.serve()
    for name in ("one", "two"):
        rig.client.submit([AddRequest(req_id=name, prompt_token_ids=[1, 2, 3], session="s")])
    assert rig.sent(0) == ["one"] and rig.sent(1) == ["two"]
    with pytest.raises(QueueFullError):
        rig.client.submit([request("three")])
    assert rig.client.num_running == 2
    await rig.client.shutdown()
