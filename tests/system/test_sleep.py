"""Sleep gives a real engine's memory back, and waking brings the same replies."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.conftest import starter
from tests.system.harness import Served, status_bytes, wait_until

POOL = 64 << 20


@pytest.fixture(scope="module")
def server(smollm2_gguf) -> Iterator[Served]:
    """Each test leaves it awake."""
    with starter() as start:
        served = start(smollm2_gguf, "--kv-cache-memory-bytes", "64M", "--max-model-len", "1024")
        served.wait_ready(60)
        yield served


def post(server: Served, path: str) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", timeout=60)


def complete(server: Served, **body: object) -> httpx.Response:
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    return httpx.post(url, json={"temperature": 0, **body}, timeout=60)


def ask(server: Served) -> str:
    reply = complete(server, prompt="Seven floors, and on the first of them", max_tokens=12)
    return reply.json()["choices"][0]["text"]


def assert_refuses(server: Served) -> None:
    reply = complete(server, prompt="a")
    assert reply.status_code == 503 and int(reply.headers["Retry-After"]) > 0
    assert "sleeps; POST /wake_up" in reply.json()["error"]["message"]


def fill_the_pool(server: Served) -> None:
    """Write every block: prompts that have nothing in common."""
    for first in range(5):
        prompt = [1000 + 700 * first + i for i in range(600)]
        assert complete(server, prompt=prompt, max_tokens=1).status_code == 200


def test_both_levels_give_memory_back_and_wake_to_the_same_replies(server):
    alone = ask(server)
    fill_the_pool(server)
    engine = server.engine_pid()
    full = status_bytes(engine, "RssAnon")
    assert post(server, "/sleep").json() == {"is_sleeping": True}
    # Nearly all of the pool was written; a quarter is left for what else comes and goes.
    assert status_bytes(engine, "RssAnon") < full - POOL * 3 // 4
    assert_refuses(server)
    assert post(server, "/wake_up").json() == {"is_sleeping": False}
    assert server.engine_pid() == engine
    assert ask(server) == alone

    assert post(server, "/sleep?level=2").json() == {"is_sleeping": True}
    assert server.processes() == [server.process.pid], "of the engine nothing is left"
    assert_refuses(server)
    assert post(server, "/wake_up").json() == {"is_sleeping": False}
    assert ask(server) == alone


def test_streams_end_with_the_reason_and_storms_of_calls_end_well(server):
    alone = ask(server)
    url = f"http://127.0.0.1:{server.port}"
    body = {"prompt": "One", "max_tokens": 900, "ignore_eos": True}
    events: list[str] = []

    def read() -> None:
        words = {**body, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=words, timeout=60) as reply:
            events.extend(line for line in reply.iter_lines() if line.startswith("data: "))

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: any(slot["is_processing"] for slot in httpx.get(f"{url}/slots").json()))
    assert post(server, "/sleep").status_code == 200
    reader.join(30)
    assert not reader.is_alive()
    last = next(event for event in reversed(events) if event != "data: [DONE]")
    assert "sleeps; POST /wake_up" in json.loads(last.removeprefix("data: "))["error"]["message"]

    paths = ["/sleep", "/wake_up", "/sleep?level=2", "/wake_up"] * 2
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(complete, server, prompt="One", max_tokens=4) for _ in range(8)]
        calls = list(pool.map(lambda path: post(server, path), paths))
        assert [reply.status_code for reply in calls] == [200] * len(paths)
        assert {one.result().status_code for one in asked} <= {200, 503}
    assert post(server, "/wake_up").json() == {"is_sleeping": False}
    assert ask(server) == alone
