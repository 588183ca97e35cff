"""Two engines of the default model, one killed under load: every stream goes on to its end, with
the tokens that it has alone."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.system.harness import Served, wait_until

STREAMS, TOKENS = 6, 96


def body(index: int) -> dict:
    """Half of them greedy, half with a seed."""
    how = {"temperature": 0.0} if index % 2 else {"temperature": 0.9, "seed": index}
    return {"prompt": f"Story {index}: once upon a time", "max_tokens": TOKENS, **how}


def restarts(served: Served) -> list[float]:
    """Of each engine."""
    text = httpx.get(f"{served.url}/metrics").text
    lines = [one for one in text.splitlines() if one.startswith("pagoda:engine_restarts_total{")]
    return [float(line.rpartition(" ")[2]) for line in sorted(lines)]


def test_no_stream_is_lost_when_an_engine_is_killed(serve, smollm2_gguf):
    served = serve(
        smollm2_gguf, "--data-parallel-size", 2, "--max-model-len", 512,
        "--kv-cache-memory-bytes", "64M",
    )  # fmt: skip
    served.wait_ready(120)
    client, pids = served.openai(), set(served.engines()) - {served.process.pid}
    assert len(pids) == 2 and restarts(served) == [0, 0]
    more = {"extra_body": {"ignore_eos": True}}

    def alone(index: int) -> str:
        return client.completions.create(model=served.name, **body(index), **more).choices[0].text

    expected = [alone(index) for index in range(STREAMS)]
    assert len(set(expected)) == STREAMS
    begun = threading.Barrier(STREAMS + 1)

    def streamed(index: int) -> str:
        stream = client.completions.create(model=served.name, stream=True, **body(index), **more)
        parts = [next(stream).choices[0].text for _ in range(3)]
        begun.wait(120)
        return "".join([*parts, *(chunk.choices[0].text for chunk in stream if chunk.choices)])

    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(streamed, index) for index in range(STREAMS)]
        begun.wait(120)
        os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: set(served.engines()) - {served.process.pid} != pids)
        assert httpx.get(f"{served.url}/health").status_code == 200
        assert [stream.result(120) for stream in streams] == expected
    assert any("go on elsewhere" in line for line in served.log)
    wait_until(lambda: sum(restarts(served)) == 1, 60)
    assert served.stop() == 0
    served.assert_nothing_left()
