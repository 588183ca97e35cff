"""kill -9 of the engine in mid-stream: the stream ends with the cause, the server heals. It ends
after several deaths in a row, so that whoever supervises it can act."""

import os
import signal

import httpx
import openai
import pytest

from tests.system.harness import Served, wait_until


def health(served: Served) -> httpx.Response:
    return httpx.get(f"{served.url}/health")


def test_the_engine_is_killed_in_mid_stream(serve, smollm2_gguf):
    served = serve(smollm2_gguf, "--max-engine-restarts", 1)
    served.wait_ready(60)
    client, first_engine = served.openai(), served.engine_pid()
    stream = client.completions.create(
        model=served.name, prompt="Once", max_tokens=4000, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(stream)
    os.kill(first_engine, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="ended by SIGKILL"):
        list(stream)

    sick = health(served)
    assert sick.status_code == 503
    assert "ended by SIGKILL" in sick.json()["cause"]
    assert httpx.get(f"{served.url}/health/live").status_code == 200
    with pytest.raises(openai.APIStatusError, match="SIGKILL") as refused:
        client.completions.create(model=served.name, prompt="Once", max_tokens=1)
    assert refused.value.status_code == 503

    wait_until(lambda: health(served).status_code == 200, 60)
    reply = client.completions.create(model=served.name, prompt="Once", max_tokens=3)
    assert reply.usage.completion_tokens == 3
    assert served.engine_pid() != first_engine
    assert len(served.socket_folders()) == 1

    os.kill(served.engine_pid(), signal.SIGKILL)
    assert served.wait(20) == 1
    assert any("The engine was given up. " in line for line in served.log)
    served.assert_nothing_left()
