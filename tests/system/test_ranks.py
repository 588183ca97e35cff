"""A server whose model is split over two processes, or whose layers are dealt out to them: as one
to its clients, in life and death."""

import os
import signal
from pathlib import Path

import httpx
import openai
import pytest

from pagoda import LLM, SamplingParams
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny
from tests.system.harness import Served, wait_until

PROMPTS = [f"{i} " + "the quick brown fox jumps over the lazy dog. " * 3 for i in range(5)]
COUNT = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", vocab_size=260, max_position_embeddings=2048).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


SPLITS = ("--tensor-parallel-size", "--pipeline-parallel-size")


@pytest.fixture
def served(serve, folder, request) -> Served:
    return start(serve, folder, split=request.param)


def start(serve, folder, *flags: str, split: str = SPLITS[0]) -> Served:
    # 5 requests of 12 blocks want more than 40.
    server = serve(
        folder, *flags, split, "2", "--dtype", "float32", "--device", "cpu",
        "--disable-custom-all-reduce", "--num-gpu-blocks-override", "41",
        "--max-model-len", "600",
    )  # fmt: skip
    server.wait_ready(90)
    return server


def ranks(served: Served) -> list[int]:
    return [pid for pid in served.processes() if b"pagoda.engine.ranks.main" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def complete(served: Served, prompts: list[str]) -> tuple[list[str], int]:
    """(the texts, prompt tokens that were cached); all prompts arrive at once."""
    reply = served.openai().completions.create(
        model=served.name, prompt=prompts, max_tokens=COUNT, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    details = reply.usage.prompt_tokens_details
    return [choice.text for choice in reply.choices], details.cached_tokens if details else 0


def stream(served: Served) -> openai.Stream:
    """A reply that is under way."""
    reply = served.openai().completions.create(
        model=served.name, prompt="Once", max_tokens=590, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(reply)
    return reply


@pytest.mark.slow
def test_a_stopped_rank_stops_the_step_of_all(serve, folder):
    served = start(serve, folder, "--engine-stall-timeout", "5")
    (first,) = ranks(served)
    reply = stream(served)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(openai.APIError, match=r"no progress for .* \(phase: step\) and was killed"):
        list(reply)
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    (second,) = ranks(served)
    assert second != first, "a stopped process does not stay behind"
    assert len(complete(served, PROMPTS[:1])[0]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("served", SPLITS, indirect=True)
def test_replies_and_a_killed_rank(served, folder):
    llm = LLM(str(folder), dtype="float32", device="cpu", threads=1, max_model_len=600)
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS, sampling)]
    assert complete(served, PROMPTS)[0] == expected
    metrics = httpx.get(f"{served.url}/metrics").text
    (preempted,) = [x for x in metrics.splitlines() if x.startswith("vllm:num_preemptions_total")]
    assert float(preempted.split()[-1]) > 0
    texts, cached = complete(served, PROMPTS[-1:])
    assert texts == expected[-1:] and cached >= 96

    assert httpx.post(f"{served.url}/sleep", timeout=60).json() == {"is_sleeping": True}
    with pytest.raises(openai.APIStatusError, match="sleeps"):
        complete(served, PROMPTS[:1])
    assert httpx.post(f"{served.url}/wake_up", timeout=60).json() == {"is_sleeping": False}
    assert complete(served, PROMPTS[:2])[0] == expected[:2]

    (first,) = ranks(served)
    # Whoever stops a group of processes speaks to it as well; the engine tells it when to go.
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(first, number)
    reply = stream(served)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="The process of rank 1 was ended by SIGKILL"):
        list(reply)
    # The engine is started once more, with a rank of its own.
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    (second,) = ranks(served)
    assert second != first
    assert complete(served, PROMPTS[:1])[0] == expected[:1]
    reply = stream(served)
    assert served.stop(signal.SIGINT, 2) == 0
    with pytest.raises(openai.APIError, match="stopped"):
        list(reply)
    served.assert_nothing_left()
    assert "Traceback" not in "\n".join(served.log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "served",
    [SPLITS[1], pytest.param(SPLITS[0], marks=pytest.mark.exhaustive)],
    indirect=True,
)
def test_a_killed_server_takes_its_ranks_along(served):
    reply = stream(served)
    assert len(served.engines()) == 3
    served.process.kill()
    served.wait(2)
    wait_until(lambda: served.processes() == [])
    assert served.socket_folders() == []
    with pytest.raises((openai.APIError, httpx.TransportError)):
        list(reply)


@pytest.mark.slow
@pytest.mark.parametrize(
    "served",
    [SPLITS[0], pytest.param(SPLITS[1], marks=pytest.mark.exhaustive)],
    indirect=True,
)
def test_a_killed_engine_takes_its_ranks_along(served):
    (asleep,) = ranks(served)
    assert httpx.post(f"{served.url}/sleep", timeout=60).status_code == 200
    os.kill(asleep, signal.SIGKILL)
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 503)
    cause = httpx.get(f"{served.url}/health").json()["cause"]
    assert cause.startswith("The process of rank 1 was ended by SIGKILL")
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    (rank,) = ranks(served)
    (engine,) = set(served.engines()) - {served.process.pid, rank}
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: rank not in served.processes())
    # A second death so soon is no accident: nothing is started any more.
    wait_until(lambda: served.engines() == [served.process.pid])
    assert served.stop(signal.SIGINT, 2) == 0
    served.assert_nothing_left()
