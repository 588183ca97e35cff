"""What the machines of one engine say to each other, and whom rank 0 lets in."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig, ModelConfig, ParallelConfig
from pagoda.config.nodes import NodesConfig
from pagoda.engine import framed
from pagoda.engine.ranks import agent, listening
from pagoda.engine.ranks.link import RankMeasure, RankReady, TcpPlace
from pagoda.engine.ranks.listening import NodeEnters, RankEnters, RefusedError, enter
from pagoda.engine.ranks.nodes import NodeStarter, sizes_of
from pagoda.engine.ranks.tcp import TcpEnd, TcpLeader

SECRET = b"a secret of 24 characters"


def until() -> float:
    return time.monotonic() + 5


@pytest.fixture
def leader():
    made = TcpLeader("127.0.0.1", 0, 3, SECRET)
    yield made
    made.close()


def test_what_is_said_before_a_rank_has_come_waits_for_it(leader):
    lost = threading.Event()
    leader.send(RankMeasure(computes=False))
    first = TcpEnd(leader.place, 1, lost.set)
    leader.send(RankMeasure(computes=True))
    second = TcpEnd(leader.place, 2, lost.set)
    for end in (first, second):
        assert [end.receive().computes for _ in range(2)] == [False, True]
    second.send(RankReady(2))
    assert leader.receive(5000) == RankReady(2)
    assert leader.receive(0) is None
    # Its last words arrive although it closes at once.
    first.send(RankReady(1))
    first.close()
    assert leader.receive(5000) == RankReady(1)
    lost.clear()
    leader.close()
    assert lost.wait(5)
    second.close()


@pytest.mark.parametrize(
    ("secret", "who", "words"),
    [
        (b"another one of 24 letters", RankEnters(1, "x"), "different secrets"),
        (b"", RankEnters(1, "x"), "different secrets"),
        (SECRET, RankEnters(1, "x"), "another start of the engine"),
        (SECRET, NodeEnters(1, {}, ""), "no other nodes"),
    ],
)
def test_who_is_not_let_in(leader, secret, who, words):
    with pytest.raises(RefusedError, match=words):
        enter("127.0.0.1", leader.place.port, secret=secret, who=who)


def test_a_rank_enters_once(leader):
    end = TcpEnd(leader.place, 1, lambda: None)
    leader.send(RankMeasure(computes=True))
    end.receive()  # so it is in
    with pytest.raises(RefusedError, match="there is a rank 1 already"):
        TcpEnd(leader.place, 1, lambda: None)
    end.close()


def test_another_version(leader):
    place: TcpPlace = leader.place
    with socket.create_connection(("127.0.0.1", place.port), timeout=5) as sock:
        hello = listening._receive(sock, listening.Hello, until())
        nonce = framed.new_nonce()
        shown = framed.proof(SECRET, "enters", nonce, hello.nonce)
        # What it says of itself has a form that is not known here.
        who = msgspec.Raw(msgspec.msgpack.encode({"type": "Newer"}))
        listening._send(sock, listening.Entry(nonce, shown, "0.0.1", who))
        answer = listening._receive(sock, listening.Admitted | listening.Refused, until())
    assert answer.said.startswith("this is Pagoda 0.0.1, and node 0 has ")


@pytest.mark.parametrize("length", [framed._LENGTH.pack(1 << 31), b"GET "])
def test_what_speaks_something_else(leader, length):
    with socket.create_connection(("127.0.0.1", leader.place.port), timeout=5) as sock:
        listening._receive(sock, listening.Hello, until())
        sock.sendall(length)
        assert sock.recv(1) == b""


def drip(sock: socket.socket) -> bool:
    """Begin a message and say a byte of it now and then; whether the peer hung up."""
    sock.sendall(framed._LENGTH.pack(4096))
    sock.settimeout(0.02)
    for _ in range(200):
        try:
            sock.send(b"0")
            if not sock.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_a_greeting_has_one_deadline(leader, monkeypatch):
    """Who does not know the secret keeps no place by saying a byte now and then."""
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(listening, "GREETING_SECONDS", 0.2)
        socks = [
            stack.enter_context(socket.create_connection(("127.0.0.1", leader.place.port)))
            for _ in range(3)
        ]
        for sock in socks:
            listening._receive(sock, listening.Hello, until())
        assert all(drip(sock) for sock in socks)
    end = TcpEnd(leader.place, 1, lambda: None)
    end.close()


def test_a_false_leader_holds_nobody(monkeypatch):
    monkeypatch.setattr(listening, "GREETING_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        hung_up = []

        def lead() -> None:
            with server.accept()[0] as peer:
                hung_up.append(drip(peer))

        dripping = threading.Thread(target=lead)
        dripping.start()
        with pytest.raises(TimeoutError):
            enter("127.0.0.1", server.getsockname()[1], secret=SECRET, who=RankEnters(1, "x"))
        dripping.join(10)
        assert hung_up == [True]


@pytest.fixture
def configs() -> tuple[EngineConfig, EngineConfig]:
    """Those of two machines with a rank each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = EngineConfig(model=ModelConfig("none"), parallel=ParallelConfig(2))
    nodes = NodesConfig(2, master_port=port)
    other = replace(nodes, node_rank=1, headless=True)
    return replace(config, nodes=nodes), replace(config, nodes=other)


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_node_that_comes_serves_and_loses_its_head(configs, caplog):
    first, second = configs
    caplog.set_level(logging.INFO)
    starter = NodeStarter(first, "weights")
    awaited: list[str] = []
    waiting = threading.Thread(target=starter.wait, args=(awaited.append,))
    waiting.start()
    port = first.nodes.master_port
    soon(lambda: awaited)
    assert awaited[0] == f"node 1 at 127.0.0.1 port {port}"
    who = NodeEnters(1, sizes_of(second), "weights")
    connection = enter("127.0.0.1", port, secret=b"", who=who)
    waiting.join(30)
    reasons: list[str] = []
    visit = agent._Visit(second, Path("none"), b"", connection)
    visiting = threading.Thread(target=lambda: reasons.append(visit.run()))
    visiting.start()
    starter.serves()
    soon(lambda: "Node 1 of 2 serves" in caplog.text)
    starter.close()
    visiting.join(30)
    assert reasons == ["its engine or the connection to it ended"]


def test_a_node_says_why_it_waits(configs, caplog, monkeypatch):
    """Also where another machine has its number: that may be itself, of a moment ago."""
    caplog.set_level(logging.INFO)
    answers = iter(
        [
            ConnectionRefusedError(111, "Connection refused"),
            RefusedError("there is a node 1 already", for_now=True),
            RefusedError("the two have different secrets"),
        ]
    )

    def refused(*_, **__):
        raise next(answers)

    monkeypatch.setattr(agent, "enter", refused)
    monkeypatch.setattr(agent, "fetch_model", lambda model: model)
    monkeypatch.setattr(agent, "open_model", lambda *_: None)
    monkeypatch.setattr(agent, "model_identity", lambda *_: "weights")
    for name in ("_REPORT_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(agent, name, 0.0)
    assert agent.run_node(configs[1]) == 1
    place = f"Waiting for node 0 at 127.0.0.1 port {configs[1].nodes.master_port}"
    assert [record.message for record in caplog.records if record.name.endswith("agent")] == [
        f"{place} (Connection refused).",
        f"{place} (there is a node 1 already).",
        "Node 0 refuses this machine: the two have different secrets.",
    ]


def test_an_address_that_is_taken(leader):
    with pytest.raises(ConfigError, match=f"127.0.0.1 port {leader.place.port} .* in use"):
        TcpLeader("127.0.0.1", leader.place.port, 2, SECRET)
