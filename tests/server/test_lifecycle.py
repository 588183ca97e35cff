"""The server's process from its first port to its last breath."""

import json
import logging
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import httpx

from pagoda.base.errors import CheckpointError
from pagoda.config.engine import EngineConfig
from pagoda.config.server import ServerConfig
from pagoda.server import launch as launch_module
from pagoda.server.launch import run_server
from pagoda.server.lifecycle import reach
from pagoda.server.responses.store import ResponseStore
from tests.server.conftest import wait_until
from tests.server.fakes import REPLY
from tests.server.served import Served

BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def stream_in_background(url: str) -> tuple[threading.Thread, list[str]]:
    lines: list[str] = []

    def read() -> None:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=30) as reply:
            lines.extend(line for line in reply.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, lines


def test_from_start_to_stop(launch, tmp_path: Path) -> None:
    served = launch()
    # Whoever comes early is answered, not refused.
    wait_until(lambda: _status(served, "/health") == 503 or "Ready:" in served.log)
    noted = json.loads((tmp_path / "run" / f"{served.port}.json").read_text())
    served.wait_ready()
    assert f"Ready: fake at {served.url}/v1 (this machine only; --host 0.0.0.0" in served.log
    assert _status(served, "/health") == 200
    assert noted["pid"] == served.process.pid
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code(2) == 0
    assert not (tmp_path / "run" / f"{served.port}.json").exists()


def test_an_open_server_says_who_may_use_it() -> None:
    with socket.socket() as unheard:  # bound and never listening: nobody can connect
        unheard.bind(("0.0.0.0", 0))
        open_to_all = reach(ServerConfig(host="0.0.0.0"), unheard)
        assert "open to everyone who reaches it; --api-key asks for a key" in open_to_all
        assert reach(ServerConfig(host="0.0.0.0", api_key=("k",)), unheard) == ""
    assert ServerConfig().host == "127.0.0.1"


def _status(served: Served, path: str) -> int:
    try:
        return httpx.get(served.url + path).status_code
    except httpx.ConnectError:
        return 0


def test_requests_while_loading(launch) -> None:
    served = launch("hangs")
    wait_until(lambda: _status(served, "/health") == 503, 30)
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=BODY)
    assert reply.status_code == 503 and "retry-after" in reply.headers
    assert _status(served, "/v1/models") == 503
    assert reply.json()["error"]["message"] == "The model is still loading (phase: load weights)."
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0


def test_stop_in_mid_stream(launch) -> None:
    served = launch()
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"
    assert "stopped" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
    assert "Traceback" not in served.log


def test_drain(launch) -> None:
    served = launch("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code(20) == 0
    thread.join()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == REPLY


def test_a_drain_ends_at_its_limit(launch) -> None:
    served = launch("crawls", "--shutdown-timeout=0.5")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: bool(lines))
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"
    assert "stopped" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
    assert "running requests get 0.5 s" in served.log


def test_replies_wait_for_an_engine_that_takes_its_time_to_leave(launch) -> None:
    """It may be keeping its prefixes on a disk: what it says at its end reaches its readers."""
    served = launch("saves", "crawls")
    served.wait_ready()
    whole: list[httpx.Response] = []
    body = {**BODY, "stream": False}
    post = partial(httpx.post, f"{served.url}/v1/chat/completions", json=body, timeout=30)
    other = threading.Thread(target=lambda: whole.append(post()))
    other.start()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    thread.join()
    other.join()
    assert "stopped" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
    assert lines[-1] == "data: [DONE]"
    assert (whole[0].status_code, "retry-after" in whole[0].headers) == (503, True)


def test_a_request_that_never_ends_holds_no_server_up(launch) -> None:
    served = launch()
    served.wait_ready()
    with socket.create_connection(("127.0.0.1", served.port)) as half:
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        wait_until(lambda: _status(served, "/health") == 200)  # it was read by then
        served.process.send_signal(signal.SIGTERM)
        assert served.exit_code(20) == 0
    assert "cut off at the end: 1" in served.log


def test_no_new_requests_while_draining(launch) -> None:
    served = launch("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _status(served, "/health") == 0)
    assert served.exit_code() == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"


def test_second_signal_ends_the_drain(launch) -> None:
    served = launch("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping on SIGINT" in served.log)
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0
    thread.join()


async def test_a_background_response_when_the_server_stops(launch, tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    served = launch(f"--responses-store={path}")
    served.wait_ready()
    body = {"input": "hi", "background": True}
    reply = httpx.post(f"{served.url}/v1/responses", json=body).json()
    wait_until(lambda: _status(served, f"/v1/responses/{reply['id']}") == 200)
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code(5) == 0
    assert "Traceback" not in served.log
    store = ResponseStore(path)
    kept = await store.get(reply["id"])
    store.close()
    assert kept is not None and not kept.running
    response = json.loads(kept.response)
    assert response["status"] == "failed" and "stopped" in response["error"]["message"]


def test_a_store_that_can_not_be_used_ends_the_start(launch, tmp_path: Path) -> None:
    served = launch(f"--responses-store={tmp_path / 'no' / 'responses.db'}")
    assert served.exit_code() == 1
    assert "--responses-store" in served.log.splitlines()[-1]
    assert "Traceback" not in served.log


def test_engine_that_cannot_start(launch) -> None:
    served = launch("fails")
    assert served.exit_code() == 1
    assert served.log.splitlines()[-1].endswith("The engine could not load: out of memory.")
    assert "Traceback" not in served.log


def ask(served: Served, first: str) -> httpx.Response:
    """Its first letter tells the engine what to do (tests/engine/stub_engine.py)."""
    body = {"prompt": f"{first}.", "max_tokens": 5, "temperature": 0}
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)


def test_an_engine_that_dies_is_replaced_and_given_up_at_last(launch, tmp_path: Path) -> None:
    served = launch("stub", "--max-engine-restarts=2", environment={"STUB_FOLDER": str(tmp_path)})
    served.wait_ready()
    expected = ask(served, "A").json()["choices"]
    reply = ask(served, "C")
    assert (tmp_path / "died").exists() and reply.status_code == 200, "it ran again"
    assert len(reply.json()["choices"][0]["text"]) == len(expected[0]["text"])
    assert 'pagoda:engine_restarts_total{engine="0",model_name="fake"} 1.0' in (
        httpx.get(f"{served.url}/metrics").text
    )
    reply = ask(served, "B")
    assert reply.status_code == 503 and "exit status 3" in reply.json()["error"]["message"]
    assert served.exit_code() == 1
    assert "The engine is given up after 3 deaths in a row: " in served.log
    last = served.log.splitlines()[-1]
    assert "The engine was given up. The engine process ended with exit status 3" in last
    assert "Traceback" not in served.log


def test_port_in_use(launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = launch(port=port)
        assert served.exit_code() == 1
    assert len(served.log.splitlines()) == 1
    assert f"Port {port} on 127.0.0.1 is in use" in served.log


def test_advice_of_several_lines_is_logged_line_by_line(monkeypatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise CheckpointError("It is broken:\nERROR forged")

    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    monkeypatch.setattr(launch_module, "tls_context", fail)
    monkeypatch.setattr(launch_module, "setup_logging", lambda *_: None)
    advice = ["Raise it:\n    ulimit -v unlimited && pagoda serve", "And again."]
    with caplog.at_level("ERROR", "pagoda"):
        code = run_server(EngineConfig(), ServerConfig(), advise=lambda error: advice)
    assert code == 1
    # What a model's file says stays one line, which the log escapes.
    assert [record.getMessage() for record in caplog.records] == [
        "It is broken:\nERROR forged",
        "Raise it:",
        "    ulimit -v unlimited && pagoda serve",
        "And again.",
    ]


def test_a_template_that_never_ends_holds_up_nothing(launch, smollm2_gguf: Path) -> None:
    served = launch("attacked", str(smollm2_gguf))
    served.wait_ready()
    statuses: list[int] = []
    body = {"messages": [{"role": "user", "content": "hi"}]}

    def attack() -> None:
        with httpx.Client(base_url=served.url, timeout=60) as client:
            statuses.append(client.post("/v1/chat/completions", json=body).status_code)

    threads = [threading.Thread(target=attack) for _ in range(6)]
    for thread in threads:
        thread.start()
    # Others are served meanwhile, and the server ends when it is told to.
    for _ in range(3):
        assert _status(served, "/health") == 200
        sent = {"prompt": "hi", "max_tokens": 2}
        assert httpx.post(f"{served.url}/v1/completions", json=sent).status_code == 200
    assert not statuses
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    for thread in threads:
        thread.join()
    assert statuses == [503] * 6
