"""Two real models behind one port that hardly has room for one."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.conftest import starter
from tests.system.harness import Served, wait_until

ASK = [{"role": "user", "content": "Say hi."}]


@pytest.fixture(scope="module")
def server(smollm2_gguf) -> Iterator[Served]:
    """Each test leaves one of the two loaded."""
    with starter() as start:
        # Each is planned to take about 400 MiB with this pool.
        served = start(
            smollm2_gguf, f"second={smollm2_gguf}", "--served-model-name", "first",
            "--models-memory", "600M", "--kv-cache-memory-bytes", "64M", "--max-model-len", "1024",
        )  # fmt: skip
        served.wait_ready(60)
        assert states(served) == {"first": "loaded", "second": "unloaded"}
        yield served


def states(server) -> dict[str, str]:
    cards = httpx.get(f"http://127.0.0.1:{server.port}/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}


def ask(server, model: str) -> str:
    reply = server.openai().chat.completions.create(
        model=model, messages=ASK, max_tokens=8, temperature=0
    )
    assert reply.model == model
    return reply.choices[0].message.content


def test_models_take_turns_and_no_request_is_lost(server):
    alone = ask(server, "first")
    assert ask(server, "second") == alone
    assert states(server) == {"first": "unloaded", "second": "loaded"}
    with ThreadPoolExecutor(6) as pool:
        names = ["first", "second"] * 3
        assert set(pool.map(lambda name: ask(server, name), names)) == {alone}
    assert len([state for state in states(server).values() if state == "loaded"]) == 1


def test_loading_and_unloading_by_request(server):
    url = f"http://127.0.0.1:{server.port}"
    news: list[dict] = []

    def listen() -> None:
        with httpx.stream("GET", f"{url}/models/sse", timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    news.append(json.loads(line[6:]))
                if len(news) > 2 and news[-1] == {
                    **news[-1],
                    "model": "second",
                    "status": "loaded",
                }:
                    return

    ask(server, "first")  # loads it where another test left it unloaded
    listener = threading.Thread(target=listen)
    listener.start()
    wait_until(lambda: bool(news))
    assert httpx.post(f"{url}/models/unload", json={"model": "first"}).json() == {"success": True}
    assert httpx.post(f"{url}/models/unload", json={"model": "first"}).json() == {"success": False}
    assert states(server)["first"] == "unloaded"
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.post(f"{url}/models/load", json={"model": "second"}).json() == {"success": True}
    listener.join(60)
    assert not listener.is_alive()
    of_second = [event["status"] for event in news if event["model"] == "second"]
    assert of_second[0] == "unloaded" and of_second[-1] == "loaded" and "loading" in of_second
    phases = [e["progress"]["phase"] for e in news if "progress" in e]
    assert "load weights" in phases
    missing = httpx.post(f"{url}/models/load", json={"model": "third"})
    assert missing.status_code == 404 and "first, second" in missing.json()["error"]["message"]


def test_an_idle_model_rests_until_it_is_asked(serve, smollm2_gguf):
    served = serve(smollm2_gguf, "--served-model-name", "only", "--idle-unload", "1")
    served.wait_ready(60)
    engine = served.engine_pid()
    for _ in range(2):
        assert ask(served, "only")
        deadline = threading.Event()
        for _ in range(200):
            if states(served) == {"only": "unloaded"}:
                break
            deadline.wait(0.1)
        assert states(served) == {"only": "unloaded"}
    assert engine not in served.processes()
