"""Sleep gives a real engine's memory back, and waking brings the same replies."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.system.harness import Served, status_bytes, wait_until

POOL = 64 << 20


@pytest.fixture
def server(serve, smollm2_gguf) -> Served:
    served = serve(smollm2_gguf, "--kv-cache-memory-bytes", "64M", "--max-model-len", "1024")
    served.wait_ready(60)
    return served


def post(server: Served, path: str) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", timeout=60)


def ask(server: Served) -> str:
    prompt = "Seven floors, and on the first of them"
    reply = server.openai().completions.create(
        model=server.name, prompt=prompt, max_tokens=12, temperature=0
    )
    return reply.choices[0].text


def fill_the_pool(server: Served) -> None:
    """Write every block: prompts that have nothing in common."""
    for first in range(5):
        prompt = [1000 + 700 * first + i for i in range(600)]
        server.openai().completions.create(model=server.name, prompt=prompt, max_tokens=1)


def test_both_levels_give_memory_back_and_wake_to_the_same_replies(server):
    alone = ask(server)
    fill_the_pool(server)
    engine = server.engine_pid()
    full = status_bytes(engine, "RssAnon")
    assert post(server, "/sleep").json() == {"is_sleeping": True}
    # Nearly all of the pool was written; a quarter is left for what else comes and goes.
    assert status_bytes(engine, "RssAnon") < full - POOL * 3 // 4
    with pytest.raises(openai.InternalServerError, match="sleeps; POST /wake_up") as refused:
        ask(server)
    assert refused.value.status_code == 503
    assert post(server, "/wake_up").json() == {"is_sleeping": False}
    assert server.engine_pid() == engine
    assert ask(server) == alone

    assert post(server, "/sleep?level=2").json() == {"is_sleeping": True}
    assert server.processes() == [server.process.pid], "of the engine nothing is left"
    with pytest.raises(openai.InternalServerError, match="sleeps; POST /wake_up"):
        ask(server)
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

    def complete(_: int) -> int:
        words = {**body, "max_tokens": 4}
        return httpx.post(f"{url}/v1/completions", json=words, timeout=60).status_code

    paths = ["/sleep", "/wake_up", "/sleep?level=2", "/wake_up"] * 2
    with ThreadPoolExecutor(16) as pool:
        asked = pool.map(complete, range(8))
        assert [reply.status_code for reply in pool.map(lambda p: post(server, p), paths)] == [
            200
        ] * len(paths)
        assert set(asked) <= {200, 503}
    assert post(server, "/wake_up").json() == {"is_sleeping": False}
    assert ask(server) == alone
