"""A model over two machines, which are two trees of processes here: one to its clients, in life and
death."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from pagoda import LLM, SamplingParams
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny
from tests.system.harness import Served, wait_until
from tests.system.test_ranks import PROMPTS, complete, ranks, stream

SECRET = "a secret of 24 characters"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    sizes = {"vocab_size": 260, "max_position_embeddings": 2048, "num_hidden_layers": 3}
    tiny.make("llama", **sizes).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def node(serve, folder, port, monkeypatch):
    """Starts one of several machines, with a rank each; number 0 has the API."""

    def start(
        number: int, split: str = "-pp", model: Path = folder, secret: str = "", count: int = 2
    ) -> Served:
        monkeypatch.setenv("PAGODA_NODES_SECRET", secret)
        flags = ["--node-rank", str(number), "--headless"] if number else []
        return serve(
            model, split, count, "--nnodes", count, "--master-port", str(port), *flags,
            "--dtype", "float32", "--device", "cpu", "--num-gpu-blocks-override", "41",
            "--max-model-len", "600",
        )  # fmt: skip

    return start


def says(served: Served, words: str, times: int = 1) -> bool:
    return "\n".join(served.log).count(words) >= times


def kill_all(served: Served) -> None:
    """The whole machine at once, as when its power fails."""
    for pid in served.processes():
        os.kill(pid, signal.SIGSTOP)
    for pid in served.processes():
        os.kill(pid, signal.SIGKILL)
    served.wait(5)


def health(served: Served) -> dict:
    """What a probe hears; {} when all is well."""
    (note,) = served.folder.glob("cache/run/*.json")
    reply = httpx.get(f"http://127.0.0.1:{note.stem}/health")
    assert reply.status_code == (503 if reply.content else 200)
    return reply.json() if reply.content else {}


def waits_for(served: Served, nodes: str, port: int) -> bool:
    if not list(served.folder.glob("cache/run/*.json")):
        return False  # it does not listen yet
    found = health(served)
    phase = f"wait for {nodes} at 127.0.0.1 port {port}"
    return found != {} and found["status"] == "starting" and found["progress"]["phase"] == phase


def patient(served: Served, prompt: str) -> str:
    """The reply, be it that of another start of the engine."""
    with served.openai().with_options(timeout=200) as client:
        reply = client.completions.create(
            model=served.name, prompt=prompt, max_tokens=48, temperature=0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
    return reply.choices[0].text


def is_idle(served: Served) -> bool:
    """No request is inside, and no block is taken."""
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    names = (
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
    )
    found = [line for line in lines if line.startswith(names)]
    assert len(found) == 3
    return all(float(line.rpartition(" ")[2]) == 0 for line in found)


@pytest.mark.slow
def test_layers_over_two_nodes_and_the_death_of_each_part(node, folder):
    other = node(1)
    wait_until(lambda: says(other, "Waiting for node 0 at 127.0.0.1"))
    served = node(0)
    served.wait_ready(90)
    llm = LLM(str(folder), dtype="float32", device="cpu", threads=1, max_model_len=600)
    sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS, sampling)]
    assert complete(served, PROMPTS)[0] == expected
    assert ranks(served) == []

    (first,) = ranks(other)
    reply = stream(served)
    os.kill(first, signal.SIGKILL)
    cause = "On node 1 .*: The process of rank 1 was ended by SIGKILL"
    with pytest.raises(openai.APIError, match=cause):
        list(reply)
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    (second,) = ranks(other)
    assert second != first
    assert complete(served, PROMPTS[:1])[0] == expected[:1]

    reply = stream(served)
    assert other.stop(signal.SIGTERM, 5) == 0
    with pytest.raises(openai.APIError, match="Node 1 .* was stopped by SIGTERM"):
        list(reply)
    other.assert_nothing_left()
    wait_until(lambda: says(served, "for --node-rank 1 of --nnodes 2"))
    other = node(1)
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    assert complete(served, PROMPTS[:1])[0] == expected[:1]
    assert served.stop(signal.SIGINT, 5) == 0
    served.assert_nothing_left()
    wait_until(lambda: ranks(other) == [])
    assert other.stop(signal.SIGINT, 5) == 0
    other.assert_nothing_left()
    assert not says(served, "Traceback") and not says(other, "Traceback")


@pytest.mark.slow
def test_each_layer_over_two_nodes(node, folder):
    served = node(0, "-tp", secret=SECRET)
    wait_until(lambda: says(served, "for --node-rank 1 of --nnodes 2"))
    odd = node(1, "-tp", secret=SECRET[::-1])
    assert odd.wait(30) == 1 and says(odd, "different secrets")
    wait_until(lambda: says(served, "may not take part: the two have different secrets"))
    changed = odd.folder / "changed"
    shutil.copytree(folder, changed)
    weights = changed / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    odd = node(1, "-tp", changed, secret=SECRET)
    assert odd.wait(30) == 1 and says(odd, "has other weight files than node 0")
    wait_until(lambda: says(served, "node 1 has other weight files than node 0"))
    odd = node(1, "-pp", secret=SECRET)
    assert odd.wait(30) == 1 and says(odd, "has --tensor-parallel-size 1, and node 0 has 2")

    other = node(1, "-tp", secret=SECRET)
    served.wait_ready(90)
    llm = LLM(str(folder), dtype="float32", device="cpu", threads=1, max_model_len=600)
    sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS[:2], sampling)]
    assert complete(served, PROMPTS[:2])[0] == expected
    # A machine that falls silent, as one whose cable is pulled.
    reply = stream(served)
    os.kill(other.process.pid, signal.SIGSTOP)
    for pid in ranks(other):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(openai.APIError, match="Node 1 .* is lost; it said nothing for 10 s"):
        list(reply)
    os.kill(other.process.pid, signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 90)
    assert complete(served, PROMPTS[:1])[0] == expected[:1]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the model is loaded three times, in nine processes
def test_three_nodes_whose_middle_one_fails_twice(node, folder, port):
    """Once behind a prompt that nobody has heard anything of, and once within replies; a client
    leaves meanwhile, another comes."""
    served, last = node(0, count=3), node(2, count=3)
    wait_until(lambda: says(last, "Node 2 of 3 takes part"), 60)
    wait_until(lambda: waits_for(served, "node 1", port), 90)
    middle = node(1, count=3)
    served.wait_ready(150)
    llm = LLM(str(folder), dtype="float32", device="cpu", threads=1, max_model_len=600)
    sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    long = "the quick brown fox jumps over the lazy dog. " * 12
    expected = [output.outputs[0].text for output in llm.generate([*PROMPTS, long], sampling)]
    for each, number in ((middle, 1), (last, 2)):
        wait_until(lambda each=each, number=number: says(each, f"Node {number} of 3 serves"))
    with ThreadPoolExecutor(4) as pool:
        left = stream(served)
        for pid in middle.processes():
            os.kill(pid, signal.SIGSTOP)
        asked = pool.submit(patient, served, long)
        wait_until(lambda: not is_idle(served))
        kill_all(middle)
        wait_until(
            lambda: waits_for(served, "nodes 1, 2", port) or waits_for(served, "node 1", port), 90
        )
        assert "Node 1 (127.0.0.1) is lost" in health(served)["cause"]
        left.close()
        wait_until(lambda: waits_for(served, "node 1", port), 90)
        with pytest.raises(openai.APIStatusError, match="wait for node 1 .*Node 1 .* is lost"):
            patient(served, PROMPTS[0])
        table = subprocess.run(
            [sys.executable, "-m", "pagoda", "ps"], capture_output=True, text=True, check=True,
            env={**os.environ, **served.environment},
        ).stdout  # fmt: skip
        assert f"(starting: wait for node 1 at 127.0.0.1 port {port})" in table
        middle = node(1, count=3)
        assert asked.result(200) == expected[-1]
        wait_until(lambda: says(last, "Node 0 is lost") and says(last, "Node 2 of 3 serves", 2), 90)

        replies = [pool.submit(patient, served, prompt) for prompt in PROMPTS]
        reply = stream(served)
        kill_all(middle)
        middle = node(1, count=3)
        with pytest.raises(openai.APIError, match="Node 1 .* is lost"):
            list(reply)
        for one, text in zip(replies, expected, strict=False):
            try:
                assert one.result(200) == text
            except openai.APIError as error:
                assert "Node 1" in str(error)
    wait_until(lambda: health(served) == {}, 90)
    wait_until(lambda: says(last, "Node 2 of 3 serves", 3), 90)
    assert [patient(served, prompt) for prompt in PROMPTS[:2]] == expected[:2]
    wait_until(lambda: is_idle(served))
    for each in (served, middle, last):
        assert each.stop(signal.SIGINT, 10) == 0
        each.assert_nothing_left()
        assert not says(each, "Traceback")
