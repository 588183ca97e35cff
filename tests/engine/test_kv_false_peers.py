"""Peers of an engine that fetches KV blocks, or gives them, which stall, lie or say nearly nothing:
they cost time and no token."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagoda.core.messages import KVTransfer
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.giving import usable_hashes
from tests.engine.false_giver import FalseGiver, record
from tests.engine.test_kv_transfer import BLOCK, PROMPT, Pair, alone, request, start, told
from tests.engine.test_node_link import drip
from tests.models import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder) -> list[int]:
    return alone(folder, request("alone"))[0]


@pytest.fixture(scope="module")
def cores(folder) -> Iterator[Pair]:
    made = Pair(*(start(folder, role) for role in ("kv_producer", "kv_consumer")))
    yield made
    made.close()


@pytest.fixture
def pair(cores) -> Pair:
    """With empty caches."""
    for core in (cores.producer, cores.consumer):
        core._transfers.forget()
        core.scheduler.reset_prefix_cache()
    cores.consumer._transfers.taker.failures.clear()
    return cores


def test_a_greeting_has_one_deadline(pair, expected, monkeypatch):
    """A byte now and then keeps no place among those who fetch."""
    with monkeypatch.context() as patch:
        patch.setattr(wire, "GREETING_SECONDS", 0.2)
        with socket.create_connection(("127.0.0.1", pair.port)) as sock:
            assert wire.receive(sock, 1000, wire.Hello).magic == wire.MAGIC
            assert drip(sock)
    pair.prefill(request("p"))
    assert pair.decode(request("d")) == (expected, 10 * BLOCK)


def coming(
    count: int,
    first: Callable[[bytes, bytes], bytes] = lambda key, raw: b"",
    *,
    stalls: bool = False,
) -> Any:
    """What a false giver says: so many blocks, and the first as made of its hash and its bytes."""

    def act(peer: socket.socket, hashes: list[bytes], block: bytes, over: threading.Event) -> None:
        wire.send(peer, wire.Coming(count))
        peer.sendall(first(hashes[0], block))
        if stalls:
            over.wait(20)

    return act


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (coming(11), "protocol"),
        (coming(10, lambda key, raw: record(key, raw[:-4])), "protocol"),
        (coming(10, lambda key, raw: record(key, b"", length=1 << 31)), "protocol"),
        (coming(10, lambda key, raw: record(key, raw, group=1)), "protocol"),
        (coming(10, lambda key, raw: record(bytes(32), raw)), "protocol"),
        (coming(10, lambda key, raw: 2 * record(key, raw)), "protocol"),
        (coming(10, lambda key, raw: record(key, raw, turned=1)), "checksum"),
        (coming(10, lambda key, raw: record(key, raw)[:-9]), "connection"),
        (coming(10, lambda key, raw: record(key, raw)[:-9], stalls=True), "timeout"),
        (coming(10, stalls=True), "timeout"),
    ],
)
def test_a_peer_that_lies_costs_no_token(pair, expected, monkeypatch, act, reason):
    """Nor does it disturb whoever runs beside. The block that it has is the true one."""
    if reason == "timeout":
        monkeypatch.setattr(wire, "SILENCE_SECONDS", 0.3)
    pair.prefill(request("p"))
    giving, taking = pair.producer.scheduler.kv, pair.consumer.scheduler.kv
    place = giving.find(0, usable_hashes(request("p"), BLOCK)[0])
    block = pair.producer._transfers.giver._store.read_blocks(0, [place]).tobytes()
    giver = FalseGiver(lambda peer, hashes: act(peer, hashes, block, giver.over))
    moved = request("d", kv_transfer=KVTransfer(False, "127.0.0.1", giver.port))
    beside = request("beside", prompt_token_ids=[(PROMPT[0] + 1) % 200, *PROMPT[1:]])
    deltas = pair.run(pair.consumer, moved, beside)
    giver.close()
    tokens, cached = told([one for one in deltas if one.req_id == "d"])
    assert tokens == expected and cached <= BLOCK
    assert told([one for one in deltas if one.req_id == "beside"])[1] == 0
    assert pair.failures() == {reason: 1}
    assert taking.num_free_blocks == taking.num_blocks
