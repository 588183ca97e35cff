"""Two servers of the default model: one computes prompts, the other goes on, by the two requests of
vLLM's proxies; and what happens to a transfer that does not come to its end."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.engine.relay import Relay
from tests.system.conftest import starter
from tests.system.harness import Served, wait_until

TEXT = "The pagoda has nine floors, and each floor has a bell of its own. " * 40
TOKENS = 24
# As vLLM's proxy and llm-d's sidecar write it.
FIRST = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip


def moves(role: str, **extra: object) -> tuple[str, str]:
    config = {
        "kv_connector": "pagoda", "kv_role": role, "kv_port": 0, "kv_connector_extra_config": extra,
    }  # fmt: skip
    return "--kv-transfer-config", json.dumps(config)


SMALL = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "64M")


@pytest.fixture(scope="module")
def consumer(smollm2_gguf) -> Iterator[Served]:
    with starter() as start:
        served = start(smollm2_gguf, *SMALL, *moves("kv_consumer"))
        served.wait_ready(120)
        yield served
        assert served.stop() == 0


@pytest.fixture
def producer(serve, smollm2_gguf) -> Served:
    served = serve(smollm2_gguf, *SMALL, *moves("kv_producer"))
    served.wait_ready(120)
    return served


def post(served: Served, path: str, body: dict, **more) -> dict:
    said = httpx.post(f"{served.url}{path}", json={**body, **more}, timeout=120)
    assert said.status_code == 200, said.text
    return said.json()


def told(reply: dict) -> tuple[str, int]:
    (choice,) = reply["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def prefill(served: Served, path: str, body: dict) -> dict:
    reply = post(served, path, body, max_tokens=1, stream=False, kv_transfer_params=FIRST)
    return reply["kv_transfer_params"]


def metric(served: Served, name: str) -> float:
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(f"pagoda:{name}"))


def completion(salt: str, **how) -> dict:
    return {"prompt": TEXT, "max_tokens": TOKENS, "ignore_eos": True, "cache_salt": salt, **how}


def test_two_servers_answer_as_one_and_a_third_begins_with_what_they_have(
    serve, smollm2_gguf, producer, consumer
):
    failures = metric(consumer, "kv_transfer_failures_total")
    transfers = metric(consumer, "kv_transfers_total")
    bodies = [
        ("/v1/completions", completion("greedy", temperature=0)),
        ("/v1/completions", completion("seeded", temperature=0.9, seed=5)),
        ("/v1/chat/completions", {
            "messages": [{"role": "user", "content": TEXT}], "max_tokens": TOKENS, "seed": 1,
        }),
    ]  # fmt: skip
    for path, body in bodies:
        alone, _ = told(post(consumer, path, {**body, "cache_salt": "alone"}))
        params = prefill(producer, path, body)
        assert params["remote_port"] and params["remote_block_ids"][0]
        before = metric(consumer, "kv_transfer_received_bytes_total")
        # vLLM's proxy sends what it took out for the first request as null.
        second = {"kv_transfer_params": params, "min_tokens": None, "min_completion_tokens": None}
        text, cached = told(post(consumer, path, body, **second))
        assert text == alone and cached > 500
        assert metric(consumer, "kv_transfer_received_bytes_total") > before
    assert metric(consumer, "kv_transfer_failures_total") == failures
    assert metric(consumer, "kv_transfers_total") == transfers + len(bodies)
    refused = httpx.post(
        f"{consumer.url}/v1/completions", json=completion("x", kv_transfer_params=FIRST)
    )
    assert refused.status_code == 400 and "kv_producer" in refused.json()["error"]["message"]

    # A third has what the first computed last: half of its pool takes what others have.
    (port,) = re.findall(
        r"KV blocks can be fetched at 127.0.0.1 port (\d+)", "\n".join(producer.log)
    )
    new = serve(smollm2_gguf, *SMALL, *moves("kv_both", warm_from=[f"127.0.0.1:{port}"]))
    new.wait_ready(120)
    wait_until(lambda: any("The prefix cache was warmed" in line for line in new.log))
    text, cached = told(post(new, path, body))
    assert text == alone and cached > 500
    assert metric(new, "kv_transfers_total") == 0, "the request waited for nothing"


def test_a_transfer_that_does_not_come_to_its_end(producer, consumer):
    failures = metric(consumer, "kv_transfer_failures_total")
    alone, _ = told(post(consumer, "/v1/completions", completion("alone", temperature=0)))
    damaged = completion("damaged", temperature=0)
    params = prefill(producer, "/v1/completions", damaged)
    relay = Relay(params["remote_port"], flip_at=1_000_000)
    params["remote_port"] = relay.port
    reply = post(consumer, "/v1/completions", damaged, kv_transfer_params=params)
    text, cached = told(reply)
    assert text == alone and 0 < cached < 500
    assert metric(consumer, "kv_transfer_failures_total") == failures + 1
    relay.close()

    # The producer dies while its blocks move: the relay lets some pass, then waits for its death.
    killed = completion("killed", temperature=0)
    params = prefill(producer, "/v1/completions", killed)
    relay = Relay(params["remote_port"], stall_at=2_000_000)
    params["remote_port"] = relay.port
    engine = producer.engine_pid()

    def kill() -> None:
        relay.stalled.wait(60)
        os.kill(engine, signal.SIGKILL)
        os.kill(producer.process.pid, signal.SIGKILL)
        relay.close()

    killer = threading.Thread(target=kill)
    killer.start()
    text, cached = told(post(consumer, "/v1/completions", killed, kv_transfer_params=params))
    killer.join()
    assert text == alone and 0 < cached < 500
    assert metric(consumer, "kv_transfer_failures_total") == failures + 2
    wait_until(lambda: any("is computed here" in line for line in consumer.log))
