"""A model over two machines, which are two trees of processes here: one to its clients, in life and
death."""

import os
import shutil
import signal
import socket
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
    tiny.make("llama", vocab_size=260, max_position_embeddings=2048).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def node(serve, folder, port, monkeypatch):
    """Starts one of two machines; number 0 has the API."""

    def start(number: int, split: str = "-pp", model: Path = folder, secret: str = "") -> Served:
        monkeypatch.setenv("PAGODA_NODES_SECRET", secret)
        flags = ["--node-rank", "1", "--headless"] if number else []
        return serve(
            model, split, "2", "--nnodes", "2", "--master-port", str(port), *flags,
            "--dtype", "float32", "--device", "cpu", "--num-gpu-blocks-override", "41",
            "--max-model-len", "600",
        )  # fmt: skip

    return start


def says(served: Served, words: str) -> bool:
    return words in "\n".join(served.log)


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
