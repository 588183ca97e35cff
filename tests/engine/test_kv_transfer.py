"""Two engines of a model: one computes a prompt, the other goes on from its blocks with the tokens
that one engine alone has. Whatever goes wrong on the way costs time and no token."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    KVTransfer,
    MediaItem,
    RequestDelta,
    is_progress,
)
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.llm import LLM
from pagoda.engine.startup import start_engine
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.giving import usable_hashes
from tests.engine.relay import Relay
from tests.models import tiny

COUNT, BLOCK = 12, 16
FAMILIES = {
    "qwen3_5": tiny.QWEN3_5, "gpt_oss": tiny.GPT_OSS, "gemma4": tiny.GEMMA4_MOE,
    "deepseek_v3": tiny.DEEPSEEK_V3, "granite4": tiny.GRANITE4_HYBRID,
}  # fmt: skip
PROMPT = tiny.random_ids(10 * BLOCK + 5, seed=3)
GREEDY = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=COUNT, ignore_eos=True)


def start(
    folder: Path | str, role: str | None, *, dtype: str = "float32", slabs: int = 120,
    port: int = 0, extra: dict[str, Any] | None = None, **cache: Any,
) -> EngineCore:  # fmt: skip
    moves = {
        "kv_connector": "pagoda", "kv_role": role, "kv_port": port,
        "kv_connector_extra_config": extra or {},
    }  # fmt: skip
    config = EngineConfig(
        model=ModelConfig(str(folder), dtype=dtype, max_model_len=240),
        cache=CacheConfig(
            num_gpu_blocks_override=slabs, kv_transfer_config=moves if role else {}, **cache
        ),
        scheduler=Scheduling(max_num_batched_tokens=64, max_num_seqs=6),
        device=DeviceConfig("cpu", threads=1),
    )
    return start_engine(config, lambda message: None)[0]


class Pair:
    """A producer and a consumer, each with its loop in turn."""

    def __init__(self, *cores: EngineCore):
        self.producer, self.consumer = cores
        self.port = cores[0]._transfers.giver._listener.port

    def run(self, core: EngineCore, *requests: AddRequest) -> list[RequestDelta]:
        for req in requests:
            core.handle(req)
        deltas, deadline = [], time.monotonic() + 30
        while core.has_work():
            deltas += [delta for delta in core.step() if not is_progress(delta)]
            for other in {self.producer, self.consumer} - {core}:
                other.when_idle()
            assert time.monotonic() < deadline
            core.scheduler.check_integrity()
        return deltas

    def prefill(self, req: AddRequest) -> dict[str, Any]:
        """The first of the two requests: what it says of where its blocks are."""
        sampling = msgspec.structs.replace(req.sampling, max_tokens=1)
        first = msgspec.structs.replace(
            req, req_id=f"{req.req_id}-p", sampling=sampling, kv_transfer=KVTransfer(keep=True)
        )
        *_, last = self.run(self.producer, first)
        assert last.kv_transfer_params["do_remote_prefill"] is True
        return last.kv_transfer_params

    def decode(self, req: AddRequest, port: int | None = None) -> tuple[list[int], int]:
        """The second: its tokens, and how many of its prompt's were cached."""
        moved = KVTransfer(False, "127.0.0.1", port or self.port)
        return told(self.run(self.consumer, msgspec.structs.replace(req, kv_transfer=moved)))

    def failures(self) -> dict[str, int]:
        return self.consumer.stats().kv_fetch_failures

    def holds(self) -> int:
        self.producer.when_idle()
        return len(self.producer._transfers.giver._holds)

    def close(self) -> None:
        self.producer.shutdown()
        self.consumer.shutdown()


def told(deltas: list[RequestDelta]) -> tuple[list[int], int]:
    assert deltas[-1].finish_reason == "length", deltas[-1]
    (cached,) = [one.num_cached_tokens for one in deltas if one.num_cached_tokens is not None]
    return [token for delta in deltas for token in delta.token_ids], cached


def request(name: str, sampling: SamplingParams = GREEDY, **fields: Any) -> AddRequest:
    fields = {"prompt_token_ids": PROMPT, **fields}
    return AddRequest(req_id=name, sampling=sampling, **fields)


def alone(folder: Path | str, *requests: AddRequest, **how: Any) -> list[list[int]]:
    """What one engine says, each request by itself, without any cache."""
    core = start(folder, None, enable_prefix_caching=False, **how)
    said = []
    for req in requests:
        core.handle(req)
        deltas = []
        while core.has_work():
            deltas += [delta for delta in core.step() if not is_progress(delta)]
        said.append(told(deltas)[0])
    core.shutdown()
    return said


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model) -> list[int]:
    """Tokens that hang on the whole prompt."""
    other = request("other", prompt_token_ids=[(PROMPT[0] + 1) % 200, *PROMPT[1:]])
    said, others = alone(tiny_model, request("alone"), other)
    assert said != others
    return said


@pytest.fixture(scope="module")
def cores(tiny_model) -> Iterator[Pair]:
    made = Pair(*(start(tiny_model, role) for role in ("kv_producer", "kv_consumer")))
    yield made
    made.close()


@pytest.fixture
def pair(cores) -> Pair:
    """With empty caches."""
    for core in (cores.producer, cores.consumer):
        core._transfers.forget()
        core.scheduler.reset_prefix_cache()
        core._transfers.taker and core._transfers.taker.failures.clear()
    return cores


@pytest.mark.parametrize(
    ("family", "cache"),
    [*((family, {}) for family in FAMILIES), ("gpt_oss", {"kv_cache_dtype": "int8"})],
)
def test_tokens_are_those_of_one_engine(tmp_path, family, cache):
    """Windows, recurrent states, latent caches, 8 bits; weights as the native kernels have them."""
    tiny.make(family, **FAMILIES[family]).save_pretrained(tmp_path)
    asked = [request("greedy"), request("seeded", SEEDED, cache_salt="other")]
    said = alone(tmp_path, *asked, dtype="auto", **cache)
    pair = Pair(
        *(start(tmp_path, role, dtype="auto", **cache) for role in ("kv_producer", "kv_consumer"))
    )
    for req, tokens in zip(asked, said, strict=True):
        pair.prefill(req)
        assert pair.holds() == 1
        assert pair.decode(req) == (tokens, 10 * BLOCK)
        wait_until(lambda: pair.holds() == 0)
    assert pair.failures() == {}
    stats, given = pair.consumer.stats(), pair.producer.stats()
    assert stats.kv_fetched_bytes == given.kv_sent_bytes > 0 and stats.kv_fetches == 2
    pair.close()


def test_only_what_is_missing_moves(pair, expected):
    pair.prefill(request("whole"))
    begun = request("begun", prompt_token_ids=PROMPT[: 4 * BLOCK + 1])
    told(pair.run(pair.consumer, begun))
    before = pair.consumer.stats().kv_fetched_bytes
    assert pair.decode(request("whole")) == (expected, 10 * BLOCK)
    bytes_of_block = pair.consumer.scheduler.kv.groups[0].block_bytes
    assert pair.consumer.stats().kv_fetched_bytes - before == 6 * bytes_of_block
    # Again all is here: nobody waits, and the producer need not keep it.
    pair.prefill(request("again"))
    assert pair.decode(request("again")) == (expected, 10 * BLOCK)
    wait_until(lambda: pair.holds() == 0)


def test_choices_of_a_prompt_share_a_fetch(pair, expected):
    where = pair.prefill(request("p"))
    moved = KVTransfer(False, where["remote_host"], where["remote_port"])
    before = pair.consumer.stats().kv_fetches
    deltas = pair.run(
        pair.consumer, *(request(f"c{index}", kv_transfer=moved) for index in range(3))
    )
    for index in range(3):
        mine = [delta for delta in deltas if delta.req_id == f"c{index}"]
        assert told(mine) == (expected, 10 * BLOCK)
    assert pair.consumer.stats().kv_fetches == before + 1


def test_a_salt_is_part_of_the_name(pair, expected):
    """Who does not know it gets nothing."""
    pair.prefill(request("salted", cache_salt="mine"))
    assert pair.decode(request("plain")) == (expected, 0)
    assert pair.failures() == {}


def test_adapters_and_pictures_are_part_of_the_name():
    """As salts are: blocks that were computed with another one have other names."""
    picture = MediaItem("a" * 64, start=BLOCK, length=4, payload="")
    asked = [
        request("plain"),
        request("adapter", adapter="b" * 64),
        request("picture", media=[picture]),
        request("other", media=[MediaItem("c" * 64, start=BLOCK, length=4, payload="")]),
    ]
    plain, adapter, *pictures = [usable_hashes(req, BLOCK) for req in asked]
    assert len(plain) == 10 and not {*plain} & {*adapter}
    for hashes in pictures:
        assert hashes[0] == plain[0] and not {*plain[1:]} & {*hashes[1:]}
    assert not {*pictures[0][1:]} & {*pictures[1][1:]}


def test_a_broken_connection_is_taken_up_again(pair, expected):
    pair.prefill(request("p"))
    block = pair.consumer.scheduler.kv.groups[0].block_bytes + 88
    relay = Relay(pair.port, cuts=(4 * block, 5 * block))
    before = pair.consumer.stats().kv_fetched_bytes
    assert pair.decode(request("d"), relay.port) == (expected, 10 * BLOCK)
    assert relay.num_connections == 3 and pair.failures() == {}
    # No block came twice.
    assert pair.consumer.stats().kv_fetched_bytes - before == 10 * (block - 88)
    relay.close()


def test_what_came_before_the_end_is_of_use(pair, expected, caplog):
    pair.prefill(request("p"))
    block = pair.consumer.scheduler.kv.groups[0].block_bytes + 88
    relay = Relay(pair.port, cuts=(4 * block, 300, 300))
    tokens, cached = pair.decode(request("d"), relay.port)
    assert tokens == expected and 0 < cached < 10 * BLOCK
    assert pair.failures() == {"connection": 1}
    assert "What is missing of the prompt is computed here." in caplog.text
    relay.close()


@pytest.mark.parametrize("place", [600, 1500, 4000])
def test_a_damaged_block_is_never_used(pair, expected, place):
    pair.prefill(request("p"))
    relay = Relay(pair.port, flip_at=place)
    tokens, cached = pair.decode(request("d"), relay.port)
    assert tokens == expected and cached < 10 * BLOCK
    assert pair.failures() in ({"checksum": 1}, {"protocol": 1})
    relay.close()


def test_a_peer_that_is_not_there(pair, expected):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert pair.decode(request("d"), port) == (expected, 0)
    assert pair.failures() == {"connection": 1}


def test_a_peer_that_is_something_else(pair, expected, monkeypatch):
    """It hears nothing before it has said what it is."""
    monkeypatch.setattr(wire, "SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert pair.decode(request("d"), other.getsockname()[1]) == (expected, 0)
        assert pair.failures() == {"timeout": 1}
        with other.accept()[0] as heard:
            assert heard.recv(100) == b""


def test_a_request_that_is_gone_ends_its_fetch(pair):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        moved = KVTransfer(False, "127.0.0.1", silent.getsockname()[1])
        pair.consumer.handle(request("gone", kv_transfer=moved))
        assert pair.consumer.has_work() and not pair.consumer.scheduler.has_work()
        pair.consumer.handle(AbortRequests(["gone"]))
        wait_until(lambda: not pair.run(pair.consumer) and not _fetches(pair))
    assert pair.failures() == {}


def _fetches(pair: Pair) -> int:
    pair.consumer.when_idle()
    return len(pair.consumer._transfers.taker._fetches)


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"kv_cache_dtype": "int8"}, "type of cache"), ({"block_size": 32}, "block size")],
)
def test_blocks_of_another_kind_are_refused(pair, tiny_model, expected, caplog, changes, what):
    """An engine of another type, layout, model or number of ranks says what differs."""
    other = Pair(pair.producer, start(tiny_model, "kv_consumer", **changes))
    pair.prefill(request("p"))
    (own,) = alone(tiny_model, request("alone"), **changes)
    assert other.decode(request("d")) == (own, 0)
    assert other.failures() == {"other_model": 1}
    assert f"who fetches has the {what} " in caplog.text
    other.consumer.shutdown()


def test_other_weights_and_ranks_are_told_apart(pair):
    mine = pair.consumer._transfers.taker._blocks_of
    assert wire.difference(mine, dict(mine)) is None
    for key in ("model", "ranks", "kernels"):
        assert f"who fetches has the {key} 'x'" in wire.difference({**mine, key: "x"}, mine)


def test_blocks_are_held_until_the_time_is_over(tiny_model, caplog):
    pair = Pair(
        start(tiny_model, "kv_both", extra={"hold_seconds": 0.2}),
        start(tiny_model, "kv_consumer"),
    )
    pair.prefill(request("p"))
    assert pair.holds() == 1
    cache = pair.producer.scheduler.kv
    assert cache.num_free_blocks == cache.num_blocks - 10
    pair.producer.scheduler.reset_prefix_cache()  # what is held stays
    wait_until(lambda: pair.holds() == 0)
    assert "not fetched within 0.2 s" in caplog.text
    assert cache.num_free_blocks == cache.num_blocks
    pair.close()


def test_holds_are_bounded_and_give_way(tiny_model):
    """At most half of the pool is held; and a request that finds no room gets what is."""
    pair = Pair(
        start(tiny_model, "kv_producer", slabs=24),
        start(tiny_model, "kv_consumer"),
    )
    for seed in range(3):
        pair.prefill(request(f"p{seed}", prompt_token_ids=tiny.random_ids(100, seed=seed)))
    assert pair.holds() == 1
    long = request("long", prompt_token_ids=tiny.random_ids(220, seed=9))
    long.sampling = replace_tokens(long.sampling, 16)
    assert len(told(pair.run(pair.producer, long))[0]) == 16
    for seed in range(6):
        pair.prefill(request(f"q{seed}", prompt_token_ids=tiny.random_ids(220, seed=20 + seed)))
    assert pair.holds() == 0
    pair.close()


def replace_tokens(sampling: SamplingParams, count: int) -> SamplingParams:
    return msgspec.structs.replace(sampling, max_tokens=count)


def test_a_cache_that_is_full_of_others(tiny_model, expected):
    """Fetched blocks make room as others do, and nobody that runs is in their way."""
    pair = Pair(
        start(tiny_model, "kv_producer"),
        start(tiny_model, "kv_consumer", slabs=28),
    )
    pair.prefill(request("p"))
    others = [
        request(f"o{seed}", replace_tokens(GREEDY, 60), prompt_token_ids=ids)
        for seed, ids in enumerate(tiny.random_ids(100, seed=seed) for seed in range(2))
    ]  # fmt: skip
    said = alone(tiny_model, *others)
    moved = request("d", kv_transfer=KVTransfer(False, "127.0.0.1", pair.port))
    deltas = pair.run(pair.consumer, *others, moved)
    by_name = {
        name: [delta for delta in deltas if delta.req_id == name] for name in ("o0", "o1", "d")
    }
    assert [told(by_name["o0"])[0], told(by_name["o1"])[0]] == said
    assert told(by_name["d"])[0] == expected
    pair.close()


def test_the_hosts_memory_is_not_mixed_up(tiny_model, expected):
    """What fetched blocks take the place of is not copied to the host as something else."""
    pair = Pair(
        start(tiny_model, "kv_producer"),
        start(tiny_model, "kv_consumer", slabs=16, kv_offloading_size=0.001),
    )
    other = request("other", prompt_token_ids=tiny.random_ids(150, seed=8))
    (said,) = alone(tiny_model, other)
    for turn in range(2):
        pair.prefill(request(f"p{turn}"))
        assert pair.decode(request(f"d{turn}"))[0] == expected
        again = msgspec.structs.replace(other, req_id=f"other{turn}")
        assert told(pair.run(pair.consumer, again))[0] == said
    pair.close()


def test_roles_are_kept(pair):
    for core, moved, said in (
        (pair.consumer, KVTransfer(keep=True), "do_remote_decode is for a kv_producer"),
        (pair.producer, KVTransfer(False, "127.0.0.1", 1), "do_remote_prefill is for a kv_cons"),
    ):
        (delta,) = pair.run(core, request("wrong", kv_transfer=moved))
        assert delta.bad_request and said in delta.error


def test_a_secret_is_proved_on_both_sides(tiny_model, expected, monkeypatch):
    cores = []
    for secret in ("a" * 32, "b" * 32, "a" * 32):
        monkeypatch.setenv("PAGODA_KV_SECRET", secret)
        role = "kv_consumer" if cores else "kv_producer"
        cores.append(start(tiny_model, role))
    producer, stranger, friend = cores
    pair = Pair(producer, stranger)
    pair.prefill(request("p"))
    assert pair.decode(request("d")) == (expected, 0)
    assert pair.failures() == {"secret": 1}
    assert Pair(producer, friend).decode(request("d")) == (expected, 10 * BLOCK)
    monkeypatch.delenv("PAGODA_KV_SECRET")
    # Who fetches does not take blocks of somebody who does not know it, either.
    open_one = start(tiny_model, "kv_producer")
    assert Pair(open_one, friend).failures() == {}
    friend.scheduler.reset_prefix_cache()
    assert Pair(open_one, friend).decode(request("e")) == (expected, 0)
    assert friend.stats().kv_fetch_failures == {"secret": 1}
    for core in (*cores, open_one):
        core.shutdown()


def test_other_machines_need_a_secret(tiny_model, pair, expected, monkeypatch, tmp_path):
    monkeypatch.delenv("PAGODA_KV_SECRET", raising=False)
    moves = {"kv_connector": "pagoda", "kv_role": "kv_producer", "kv_ip": "192.0.2.1"}
    config = EngineConfig(
        model=ModelConfig(str(tiny_model)),
        cache=CacheConfig(num_gpu_blocks_override=16, kv_transfer_config=moves),
    )
    with pytest.raises(ConfigError, match="kv_ip 192.0.2.1 can be reached from other machines"):
        start_engine(config, lambda message: None)
    (tmp_path / "secret").write_text("short\n")
    moves["kv_connector_extra_config"] = {"secret_file": str(tmp_path / "secret")}
    config = replace(config, cache=replace(config.cache, kv_transfer_config=moves))
    with pytest.raises(ConfigError, match="it needs 16 at least"):
        start_engine(config, lambda message: None)
    # A request may name any address: without a secret, none but this machine's is connected to.
    moved = request("d", kv_transfer=KVTransfer(False, "192.0.2.1", 80))
    assert told(pair.run(pair.consumer, moved)) == (expected, 0)
    assert pair.failures() == {"secret": 1}


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff", b"\0\0\0\4....", b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\x20\x01" + b"x" * 8193,
    ],
)  # fmt: skip
def test_nonsense_costs_nothing(pair, said):
    """Lengths are bounded before anything is read, and nothing but known messages is."""
    with socket.create_connection(("127.0.0.1", pair.port), 5) as sock:
        assert wire.receive(sock, 1000, wire.Hello).magic == wire.MAGIC
        sock.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""
    pair.prefill(request("p"))


def test_a_script_moves_no_blocks(tiny_model):
    with pytest.raises(ConfigError, match="pagoda serve has --kv-transfer-config"):
        LLM(str(tiny_model), kv_transfer_config={"kv_connector": "pagoda", "kv_role": "kv_both"})


def test_a_port_that_is_taken(tiny_model, pair):
    with pytest.raises(ConfigError, match="Give another kv_ip or kv_port"):
        start(tiny_model, "kv_producer", port=pair.port)
