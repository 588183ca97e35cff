"""The server's process from its first port to its last breath."""

import json
import signal
import socket
import threading
from pathlib import Path

import httpx

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


def test_from_start_to_stop(serve, tmp_path: Path) -> None:
    served = serve()
    # Whoever comes early is answered, not refused.
    wait_until(lambda: _status(served, "/health") == 503 or "Ready:" in served.log)
    served.wait_ready()
    assert f"Ready: fake at {served.url}/v1 (this machine only; --host 0.0.0.0" in served.log
    assert _status(served, "/health") == 200
    noted = json.loads((tmp_path / "run" / f"{served.port}.json").read_text())
    assert noted["pid"] == served.process.pid
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code(2) == 0
    assert not (tmp_path / "run" / f"{served.port}.json").exists()


def _status(served: Served, path: str) -> int:
    try:
        return httpx.get(served.url + path).status_code
    except httpx.ConnectError:
        return 0


def test_requests_while_loading(serve) -> None:
    served = serve("hangs")
    wait_until(lambda: _status(served, "/health") == 503, 30)
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=BODY)
    assert reply.status_code == 503 and "retry-after" in reply.headers
    assert _status(served, "/v1/models") == 503
    assert "loading" in reply.json()["error"]["message"]
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0


def test_stop_in_mid_stream(serve) -> None:
    served = serve()
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"
    assert "stopped" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
    assert "Traceback" not in served.log


def test_drain(serve) -> None:
    served = serve("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code(20) == 0
    thread.join()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == REPLY


def test_a_drain_ends_at_its_limit(serve) -> None:
    served = serve("crawls", "--shutdown-timeout=0.5")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: bool(lines))
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"
    assert "stopped" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
    assert "running requests get 0.5 s" in served.log


def test_no_new_requests_while_draining(serve) -> None:
    served = serve("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _status(served, "/health") == 0)
    assert served.exit_code() == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"


def test_second_signal_ends_the_drain(serve) -> None:
    served = serve("--shutdown-timeout=30")
    served.wait_ready()
    thread, lines = stream_in_background(served.url)
    wait_until(lambda: len(lines) > 3)
    served.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping on SIGINT" in served.log)
    served.process.send_signal(signal.SIGINT)
    assert served.exit_code(2) == 0
    thread.join()


def test_engine_that_cannot_start(serve) -> None:
    served = serve("fails")
    assert served.exit_code() == 1
    assert served.log.splitlines()[-1].endswith("The engine could not load: out of memory.")
    assert "Traceback" not in served.log


def test_port_in_use(serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(port=port)
        assert served.exit_code() == 1
    assert len(served.log.splitlines()) == 1
    assert f"Port {port} on 127.0.0.1 is in use" in served.log
