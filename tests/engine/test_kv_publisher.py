"""KV events as routers hear them: in vLLM's schema, again where they missed some, and never at the
expense of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq

from pagoda import LLM, SamplingParams
from pagoda.base.errors import ConfigError
from pagoda.config.kv_events import KVEventsConfig, kv_events
from pagoda.core.kv_events import BlockRemoved
from pagoda.core.messages import Utility
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.kv_publisher import KVPublisher

from .mock_runner import CountingRunner, make_scheduler, request, run


def schema() -> Any:
    """vLLM's structs (vllm/distributed/kv_events.py), written down here once more: batches are
    arrays, events are maps."""
    event = {"omit_defaults": True, "tag": True}
    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[bytes | int]), ("parent_block_hash", bytes | int | None),
            ("token_ids", list[int]), ("block_size", int), ("lora_id", int | None),
            ("medium", str | None), ("lora_name", str | None),
            ("extra_keys", list[tuple[Any, ...] | None] | None, None),
            ("group_idx", int | None, None), ("kv_cache_spec_kind", str | None, None),
            ("kv_cache_spec_sliding_window", int | None, None),
        ],
        **event,
    )  # fmt: skip
    removed = msgspec.defstruct(
        "BlockRemoved",
        [
            ("block_hashes", list[bytes | int]), ("medium", str | None),
            ("group_idx", int | None, None),
        ],
        **event,
    )  # fmt: skip
    cleared = msgspec.defstruct("AllBlocksCleared", [], **event)
    return msgspec.defstruct(
        "KVEventBatch",
        [("ts", float), ("events", list[stored | removed | cleared]),
         ("data_parallel_rank", int | None, None)],
        array_like=True, omit_defaults=True,
    )  # fmt: skip


DECODER = msgspec.msgpack.Decoder(schema())


class Subscriber:
    """Follows a publisher as vLLM's example does (examples/online_serving/kv_events_subscriber.py):
    a number that is missing has what came since the last one sent again."""

    def __init__(self, config: KVEventsConfig, topic: str = "", hwm: int = 1000):
        self._context = zmq.Context()
        self.sub = self._context.socket(zmq.SUB)
        self.sub.set_hwm(hwm)
        self.sub.connect(config.endpoint)
        self.sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        # A REQ socket takes one answer alone.
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.connect(config.replay_endpoint)
        self.last = -1
        self.batches: list[Any] = []

    def hear(self, seconds: float = 10) -> int:
        """One batch, and those before it; its number."""
        assert self.sub.poll(1000 * seconds), "nothing was published"
        _, number, payload = self.sub.recv_multipart()
        number = int.from_bytes(number, "big")
        if number > self.last + 1:
            self._ask_for(self.last + 1, number)
        self._take(number, payload)
        return number

    def _ask_for(self, first: int, end: int) -> None:
        self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        while self.replay.poll(10_000):
            _, number, payload = self.replay.recv_multipart()
            if not payload:
                assert number == b"\xff" * 8
                return
            if int.from_bytes(number, "big") < end:
                self._take(int.from_bytes(number, "big"), payload)

    def _take(self, number: int, payload: bytes) -> None:
        assert number == self.last + 1, "a gap"
        self.last = number
        self.batches.append(DECODER.decode(payload))

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def config(tmp_path) -> KVEventsConfig:
    ends = {key: f"ipc://{tmp_path}/{key}" for key in ("endpoint", "replay_endpoint")}
    return kv_events({"enable_kv_cache_events": True, "topic": "kv@pod@model", **ends})


@contextmanager
def publishing(config: KVEventsConfig) -> Iterator[tuple[KVPublisher, list]]:
    """A publisher, and the list of what it publishes next."""
    events: list = []

    def take() -> list:
        taken, events[:] = list(events), []
        return taken

    publisher = KVPublisher(config, take)
    try:
        yield publisher, events
    finally:
        publisher.close()


def removed(name: int) -> BlockRemoved:
    return BlockRemoved([name], "GPU", 0)


def join(publisher: KVPublisher, events: list, subscriber: Subscriber) -> None:
    """Publish until it hears something: a subscription takes a moment."""
    for name in range(1000):
        events.append(removed(name))
        publisher.flush()
        if subscriber.sub.poll(20):
            subscriber.hear()
            while subscriber.sub.poll(50):
                subscriber.hear()
            return
    raise AssertionError("the subscriber heard nothing")


def names(subscriber: Subscriber) -> list[int]:
    return [event.block_hashes[0] for batch in subscriber.batches for event in batch.events]


def test_who_comes_late_has_all_of_it(config):
    with publishing(config) as (publisher, events):
        subscriber = Subscriber(config, "kv@")
        join(publisher, events, subscriber)
        told = len(subscriber.batches)
        assert names(subscriber) == list(range(told)) == list(range(subscriber.last + 1))
        assert subscriber.batches[0].data_parallel_rank == 0
        assert abs(subscriber.batches[-1].ts - time.time()) < 60
        publisher.flush()  # nothing has happened
        assert not subscriber.sub.poll(50)
        deaf = Subscriber(config, "another topic")
        events.append(removed(told))
        publisher.flush()
        assert subscriber.hear() == told and not deaf.sub.poll(50)
        subscriber.close()
        deaf.close()


def test_a_request_socket_gets_the_first_batch_it_asks_for(config):
    with publishing(config) as (publisher, events), zmq.Context() as context:
        for name in range(9):
            events.append(removed(name))
            publisher.flush()
        with context.socket(zmq.REQ) as asks:
            asks.connect(config.replay_endpoint)
            for wrong in (b"", b"12345"):
                with context.socket(zmq.REQ) as other:
                    other.connect(config.replay_endpoint)
                    other.send(wrong)
            asks.send((6).to_bytes(8, "big"))
            assert asks.poll(10_000)
            number, payload = asks.recv_multipart()
            assert int.from_bytes(number, "big") == 6
            assert DECODER.decode(payload).events[0].block_hashes == [6]


def test_of_what_is_kept_the_last_batches_are_sent_again(config):
    config = replace(config, buffer_steps=4)
    with publishing(config) as (publisher, events):
        for name in range(9):
            events.append(removed(name))
            publisher.flush()
        subscriber = Subscriber(config)
        subscriber.replay.send_multipart([b"", bytes(8)])
        found = []
        while subscriber.replay.poll(10_000):
            _, number, payload = subscriber.replay.recv_multipart()
            if not payload:
                break
            found.append(int.from_bytes(number, "big"))
        assert found == [5, 6, 7, 8]
        subscriber.close()


def test_who_does_not_listen_costs_others_nothing(config):
    """One subscriber reads nothing; batches are far larger than all buffers on its way."""
    config = replace(config, hwm=20)
    with publishing(config) as (publisher, events):
        quick, slow = Subscriber(config), Subscriber(config, hwm=1)
        join(publisher, events, quick)
        join(publisher, events, slow)
        while quick.sub.poll(50):
            quick.hear()
        first = quick.last + 1
        longest = 0.0
        for name in range(first, first + 300):
            events.append(BlockRemoved(list(range(2**40, 2**40 + 5000)), "GPU", 0))
            began = time.perf_counter()
            publisher.flush()
            longest = max(longest, time.perf_counter() - began)
            assert quick.hear() == name
        assert longest < 1.0  # a send that waits would wait for ever
        heard = 0
        while slow.sub.poll(50):
            slow.sub.recv_multipart()
            heard += 1
        assert heard < 300
        quick.close()
        slow.close()


def test_a_queue_that_is_full_leaves_a_gap(config, monkeypatch):
    monkeypatch.setattr("pagoda.engine.kv_publisher._Sockets.run", lambda sockets: None)
    with publishing(replace(config, max_queue_size=1)) as (publisher, events):
        for name in range(20):
            events.append(removed(name))
            publisher.flush()
        assert publisher._lost > 10 and publisher._next == 20


def test_an_engine_tells_what_it_caches(config):
    scheduler = make_scheduler(num_blocks=16)
    publisher = KVPublisher(config, scheduler.watch_cache().take)
    core = EngineCore(scheduler, LocalExecutor(CountingRunner()), kv_publisher=publisher)
    subscriber = Subscriber(config)
    pool: dict[int, list[int]] = {}
    kinds = []

    def follow() -> None:
        while subscriber.sub.poll(300):
            subscriber.hear()
        for batch in subscriber.batches:
            for event in batch.events:
                kinds.append(type(event).__name__)
                if kinds[-1] == "AllBlocksCleared":
                    pool.clear()
                elif kinds[-1] == "BlockRemoved":
                    for name in event.block_hashes:
                        del pool[name]
                else:
                    tokens = iter(event.token_ids)
                    pool.update(
                        {name: [next(tokens) for _ in range(4)] for name in event.block_hashes}
                    )
        subscriber.batches.clear()

    for start in range(6):
        core.handle(request(f"r{start}", list(range(start * 9, start * 9 + 14))))
        run(core)
    follow()
    assert set(pool) == {
        int.from_bytes(block.hash[-8:], "big") for block in scheduler.kv.cached_blocks()
    }
    assert [45, 46, 47, 48] in pool.values() and "BlockRemoved" in kinds
    assert core.handle(Utility(1, "reset_prefix_cache")).result is True
    follow()
    assert pool == {} and kinds[-1] == "AllBlocksCleared"
    core.shutdown()
    subscriber.close()


def test_a_batch_as_it_travels(config):
    """The keys that vLLM sends, and llm-d (pkg/kvevents/engineadapter/vllm_adapter.go) and Dynamo
    (lib/kv-router/src/zmq_wire) look for."""
    scheduler = make_scheduler()
    publisher = KVPublisher(config, scheduler.watch_cache().take)
    core = EngineCore(scheduler, LocalExecutor(CountingRunner()), kv_publisher=publisher)
    subscriber = Subscriber(config)
    core.handle(request("r", list(range(9)), max_tokens=1))
    run(core)
    subscriber.replay.send_multipart([b"", bytes(8)])
    events = []
    while subscriber.replay.poll(10_000):
        payload = subscriber.replay.recv_multipart()[2]
        if not payload:
            break
        moment, told, rank = msgspec.msgpack.decode(payload)
        assert type(moment) is float and rank == 0
        events += told
    cleared, stored = events
    assert cleared == {"type": "AllBlocksCleared"}
    hashes = stored.pop("block_hashes")
    assert len(hashes) == 2 and all(0 <= one < 2**64 for one in hashes)
    assert stored == {
        "type": "BlockStored", "parent_block_hash": None, "token_ids": list(range(8)),
        "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None,
        "extra_keys": [None, None], "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    core.shutdown()
    subscriber.close()


def test_a_port_that_is_taken_is_named():
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        other = KVEventsConfig(endpoint="inproc://x", replay_endpoint=f"tcp://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=f"{port}.*Address.*in use.*another replay_endpoint"):
            KVPublisher(other, list)


def test_a_router_listens_where_the_endpoint_names_a_host(caplog):
    with zmq.Context() as context, context.socket(zmq.SUB) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.subscribe(b"")
        there = KVEventsConfig(endpoint=f"tcp://127.0.0.1:{port}")
        with caplog.at_level("INFO"), publishing(there) as (publisher, events):
            assert f"to tcp://127.0.0.1:{port}, where a router has to listen" in caplog.text
            for name in range(200):
                events.append(removed(name))
                publisher.flush()
                if router.poll(50):
                    return
    raise AssertionError("the router heard nothing")


def test_the_engine_of_a_model_publishes(tiny_chat_model, config):
    given = {
        "enable_kv_cache_events": True,
        "endpoint": config.endpoint,
        "replay_endpoint": config.replay_endpoint,
    }
    llm = LLM(
        model=str(tiny_chat_model), load_format="dummy", dtype="float32", device="cpu",
        threads=1, num_gpu_blocks_override=129, kv_events_config=given,
    )  # fmt: skip
    subscriber = Subscriber(config)
    prompt = {"prompt_token_ids": list(range(40))}
    llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0))
    subscriber._ask_for(0, 1 << 60)
    stored = [event for batch in subscriber.batches for event in batch.events][-1]
    assert stored.token_ids == list(range(32)) and len(stored.block_hashes) == 2
    llm._core.shutdown()
    subscriber.close()
