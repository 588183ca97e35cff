"""An engine that starts beside others has their prefixes in its cache; nobody waits for it."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.engine.core import EngineCore
from pagoda.engine.transfer import warming, wire
from pagoda.engine.transfer.holdings import Holdings
from pagoda.engine.transfer.peer import connect, greet
from tests.engine.relay import Relay
from tests.engine.test_kv_transfer import BLOCK, PROMPT, Pair, alone, request, start, told
from tests.models import tiny

FAMILIES = {"qwen3_5": tiny.QWEN3_5, "gpt_oss": tiny.GPT_OSS, "deepseek_v3": tiny.DEEPSEEK_V3}
FULL = KVGroupSpec("full", (0,), 1, 8, 4)
# Another text with the same beginning.
OTHER = [*PROMPT[: 4 * BLOCK], *tiny.random_ids(5 * BLOCK, seed=4)]


class Beside:
    """An engine that serves, and new ones beside it."""

    def __init__(self, folder: Path, **how: Any):
        self.folder, self.how = folder, how
        self.old = start(folder, "kv_both", **how)
        self.port = self.old._transfers.giver._listener.port
        self._new: list[EngineCore] = []

    def new(self, *ports: int, role: str = "kv_both", **how: Any) -> EngineCore:
        places = [f"127.0.0.1:{port}" for port in ports or (self.port,)]
        core = start(self.folder, role, extra={"warm_from": places}, **{**self.how, **how})
        self._new.append(core)
        return core

    def warmed(self, core: EngineCore) -> EngineCore:
        deadline = time.monotonic() + 30
        while not core._transfers._warming.is_over:
            core.when_idle()
            self.old.when_idle()
            core.scheduler.check_integrity()
            assert time.monotonic() < deadline
        return core

    def serve(self, *prompts: list[int]) -> None:
        for index, prompt in enumerate(prompts):
            Pair.run(
                Pair(self.old, self.old), self.old, request(f"o{index}", prompt_token_ids=prompt)
            )

    def ask(self, core: EngineCore, prompt: list[int] = PROMPT, **fields) -> tuple[list[int], int]:
        asked = request("asked", prompt_token_ids=prompt, **fields)
        return told(Pair.run(Pair(self.old, core), core, asked))

    def close(self) -> None:
        for core in (self.old, *self._new):
            core.shutdown()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model) -> tuple[list[int], list[int]]:
    one, other = alone(tiny_model, request("a"), request("b", prompt_token_ids=OTHER))
    return one, other


@pytest.fixture
def beside(tiny_model) -> Iterator[Beside]:
    made = Beside(tiny_model)
    yield made
    made.close()


def test_a_new_engine_finds_the_prefixes_of_another(beside, expected, caplog):
    caplog.set_level("INFO")
    beside.serve(PROMPT, OTHER)
    new = beside.warmed(beside.new())
    # Both prompts and what was said to them, of which four blocks are the same.
    moved = new.stats().kv_fetched_bytes // new.scheduler.kv.groups[0].block_bytes
    assert moved == 11 + 5
    assert f"The prefix cache was warmed: {moved * BLOCK} tokens (" in caplog.text
    assert f"came from 127.0.0.1 port {beside.port} in " in caplog.text
    assert beside.ask(new) == (expected[0], 10 * BLOCK)
    assert beside.ask(new, OTHER) == (expected[1], 8 * BLOCK)
    stats = new.stats()
    assert stats.kv_fetches == 0 and stats.kv_fetch_failures == {}, "no request waited"


@pytest.mark.parametrize("family", FAMILIES)
def test_states_windows_and_latent_caches(tmp_path, family):
    """Of recurrent layers the states, also one in the middle of a text that two prompts share."""
    tiny.make(family, **FAMILIES[family]).save_pretrained(tmp_path)
    said = alone(tmp_path, request("a"), request("b", prompt_token_ids=OTHER), dtype="auto")
    beside = Beside(tmp_path, dtype="auto")
    beside.serve(PROMPT, OTHER)
    here = [beside.ask(beside.old, prompt) for prompt in (PROMPT, OTHER)]
    new = beside.warmed(beside.new())
    assert [beside.ask(new, prompt) for prompt in (PROMPT, OTHER)] == here
    assert [tokens for tokens, _ in here] == said and here[0][1] > 0
    beside.close()


def test_a_giver_that_ends_midway(beside, expected, caplog):
    beside.serve(PROMPT)
    block = beside.old.scheduler.kv.groups[0].block_bytes + 88
    # The list passes; the blocks do not all come, and nobody is there any more.
    relay = Relay(beside.port, cuts=(1 << 40, 4 * block, 300, 300))
    new = beside.warmed(beside.new(relay.port, beside.port + 1 if beside.port < 65535 else 1))
    relay.close()
    tokens, cached = beside.ask(new)
    assert tokens == expected[0] and 0 < cached < 10 * BLOCK
    assert new.stats().kv_fetch_failures == {"connection": 2}, "the second was never there"
    assert f"not wholly warmed from 127.0.0.1 port {relay.port} (" in caplog.text


def test_a_giver_of_another_model(beside, tmp_path, caplog):
    tiny.make("llama", hidden_size=128).save_pretrained(tmp_path)
    other = Beside(tmp_path)
    beside.serve(PROMPT)
    new = other.new(beside.port)
    other.old, keeps = beside.old, other.old
    other.warmed(new)
    assert new.stats().kv_fetch_failures == {"other_model": 1}
    assert new.stats().kv_fetched_bytes == 0 and "who fetches has the model" in caplog.text
    assert other.ask(new)[0] == alone(tmp_path, request("alone"))[0]
    other.old = keeps
    other.close()


def test_requests_do_not_wait(beside, expected):
    """The other engine says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        new = beside.new(silent.getsockname()[1])
        assert beside.ask(new) == (expected[0], 0)
        assert not new._transfers._warming.is_over and not new.has_work()


def test_time_is_bounded(beside, expected, monkeypatch):
    beside.serve(PROMPT)
    relay = Relay(beside.port, stall_at=4000)
    monkeypatch.setattr(warming, "_MOST_SECONDS", 0.3)
    new = beside.warmed(beside.new(relay.port))
    relay.close()
    assert new.stats().kv_fetch_failures == {"timeout": 1}
    assert beside.ask(new)[0] == expected[0]


def test_half_of_the_pool_is_left_and_the_hottest_come(beside, expected):
    others = [tiny.random_ids(6 * BLOCK, seed=seed) for seed in range(20, 25)]
    beside.serve(*others, PROMPT)
    new = beside.warmed(beside.new(slabs=41))
    cached = len(new.scheduler.kv.cached_blocks())
    assert 11 <= cached <= 20
    assert beside.ask(new) == (expected[0], 10 * BLOCK)
    assert beside.ask(new, others[0])[1] == 0


def test_what_is_held_for_others_stays_held(beside, expected):
    pair = Pair(beside.old, beside.new())
    pair.prefill(request("p"))
    beside.warmed(pair.consumer)
    assert pair.holds() == 1
    assert pair.decode(request("d"))[0] == expected[0]


def test_what_came_is_given_on(beside, expected):
    """The engine after the next one has it from the next one."""
    beside.serve(PROMPT)
    new = beside.warmed(beside.new())
    third = beside.new(new._transfers.giver._listener.port)
    beside.old, oldest = new, beside.old
    beside.warmed(third)
    assert beside.ask(third) == (expected[0], 10 * BLOCK)
    beside.old = oldest


def test_a_list_is_bounded(beside):
    """By what was asked for, and by the length of a message."""
    beside.serve(PROMPT)
    peer = beside.warmed(beside.new())._transfers.taker.peer("127.0.0.1", beside.port)
    bytes_of_block = beside.old.scheduler.kv.groups[0].block_bytes
    for most, count in ((0, 0), (3 * bytes_of_block, 3), (1 << 40, 11)):
        with connect(peer) as sock:
            greet(sock, peer)
            wire.send(sock, wire.ListTexts(most))
            while not beside.old._transfers.giver._listing:
                time.sleep(0.001)
            beside.old.when_idle()
            texts = wire.receive(sock, wire.MOST_TEXTS, wire.Texts).texts
        assert sum(map(len, texts)) == count * wire.HASH_BYTES


def fill(kv: KVCacheManager, tokens: list[int]) -> list[bytes]:
    hashes = BlockHashes(4).extend(tokens, len(tokens) // 4)
    tables = kv.open("request")
    assert kv.allocate(tables, len(tokens)) is not None
    kv.advance(tables, hashes, len(tokens))
    kv.free(tables)
    return hashes


def test_texts_are_told_from_their_beginning_and_the_last_used_first():
    kv = KVCacheManager([FULL], 13)
    holdings = Holdings(kv)
    first = fill(kv, [1] * 16)
    branch = fill(kv, [1] * 8 + [2] * 8)
    assert sorted(holdings.hottest(1 << 30, 100)) == sorted([branch, first])
    other = fill(kv, [3] * 8)
    assert holdings.hottest(1 << 30, 100)[0] == other
    assert holdings.hottest(2 * FULL.block_bytes, 100) == [other]
    assert holdings.hottest(1 << 30, 5) == [other], "no more than a message holds"
    # What made room for others is not told of.
    fill(kv, [4] * 24)
    assert all(
        kv.match_prefix(text, 100).num_tokens == 4 * len(text)
        for text in holdings.hottest(1 << 30, 100)
    )


def test_little_is_known_of_what_is_gone(monkeypatch):
    monkeypatch.setattr("pagoda.engine.transfer.holdings._LEAST_KNOWN", 8)
    kv = KVCacheManager([FULL], 6)
    holdings = Holdings(kv)
    for token in range(40):
        hashes = fill(kv, [token] * 16)
        assert holdings.hottest(1 << 30, 100)[0] == hashes
        assert len(holdings._parents) <= 2 * 5 + 4
