"""Pagoda as an application of Ray Serve, on three nodes that one machine plays."""

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

pytest.importorskip("ray", reason="Ray is not installed (pip install 'pagoda-llm[ray]')")

ROOT = Path(__file__).parents[2]
PORT = 8931
URL = f"http://127.0.0.1:{PORT}"
FLAGS = {"max-model-len": 1024, "kv-cache-memory-bytes": "60M", "device": "cpu", "max-num-seqs": 4}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Cluster:
    def __init__(self, smollm2: Path):
        self.flags = {"model": str(smollm2), "served-model-name": "m", **FLAGS}
        command = [sys.executable, "-m", "tests.ray_serve.cluster", str(PORT)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.facts = self._answer()

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def deploy(self, flags: dict[str, Any] | None = None, **options: Any) -> None:
        self.ask("deploy", self.flags | (flags or {}), options)

    def wait(self, count: int, seconds: float = 90) -> None:
        """Until so many replicas run, and no more."""
        deadline = time.monotonic() + seconds
        while self.ask("state")["replicas"] != {"RUNNING": count}:
            assert time.monotonic() < deadline, self.ask("state")
            time.sleep(0.3)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise AssertionError("The cluster ended.")


@pytest.fixture(scope="module")
def cluster(smollm2_gguf):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(smollm2_gguf)
        yield cluster
        cluster.close()


def tell(number: int, tokens: int, model: str = "m") -> str:
    """The whole text of a stream; raises where it breaks off."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="x", max_retries=0)
    with client, client.chat.completions.create(
        model=model, stream=True, max_tokens=tokens, temperature=0,
        messages=[{"role": "user", "content": f"Tell a story about {number} birds."}],
        extra_body={"ignore_eos": True},
    ) as stream:  # fmt: skip
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def outcome(future: "Future[str]") -> str | None:
    """None for a stream that broke off with an error."""
    try:
        return future.result()
    except (openai.APIError, httpx.HTTPError):
        return None


def test_a_replica_that_is_killed_under_streams(cluster):
    """Three replicas on three nodes of a CPU each. Streams of the two others are as if nothing had
    been, those of the killed one say that they broke off, and a new replica comes. No replica has
    more than four of the nine, as many as it runs at once: so five at least live on."""
    cluster.deploy(num_replicas=3, max_ongoing_requests=4)
    cluster.wait(3)
    assert cluster.ask("free_cpus") == 0
    alone = {number: tell(number, 96) for number in range(9)}
    with ThreadPoolExecutor(9) as pool:
        streams = {number: pool.submit(tell, number, 96) for number in alone}
        time.sleep(0.5)
        cluster.ask("kill", cluster.ask("replicas")[0])
        told = {number: outcome(stream) for number, stream in streams.items()}
        assert tell(0, 96) == alone[0]
    assert all(text in (None, alone[number]) for number, text in told.items())
    assert sum(text is not None for text in told.values()) >= 5
    cluster.wait(3)
    assert [tell(number, 96) for number in range(3)] == [alone[number] for number in range(3)]


def test_replicas_follow_the_load(cluster):
    scaling = {
        "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 1,
        "downscale_delay_s": 2, "metrics_interval_s": 0.5, "look_back_period_s": 1.5,
        "policy": {"policy_function": "pagoda.ray:replicas_for_load"},
    }  # fmt: skip
    cluster.deploy(autoscaling_config=scaling)
    cluster.wait(1)
    over = threading.Event()

    def keep_busy(number: int) -> None:
        while not over.is_set():
            tell(number, 200)

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(keep_busy, number) for number in range(4)]
        cluster.wait(2)
        over.set()
        for each in busy:
            each.result()
    cluster.wait(1)


def test_an_update_fails_no_request(cluster):
    cluster.deploy(num_replicas=2)
    cluster.wait(2)
    over = threading.Event()

    def keep_asking(number: int) -> int:
        count = 0
        while not over.is_set():
            tell(number, 24)
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(keep_asking, number) for number in range(3)]
        cluster.deploy({"served-model-name": ["m", "new"]}, num_replicas=2)
        over.set()
        assert all(each.result() > 0 for each in asking)
    assert tell(1, 8, "new") == tell(1, 8)


def test_a_replica_whose_ranks_are_actors(cluster):
    """They are in the replica's bundles, one of which is the replica's own."""
    cluster.deploy(num_replicas=1)
    alone = tell(1, 24)
    flags = {"pipeline-parallel-size": 2, "distributed-executor-backend": "ray"}
    assert cluster.ask("run_app", cluster.flags | flags) == [{"CPU": 1.0}] * 2
    assert tell(1, 24) == alone
    assert cluster.ask("free_cpus") == 1


def test_flags_that_there_are_not(cluster):
    with pytest.raises(
        RuntimeError, match=r"In the args of pagoda.ray:build_app: unknown flag --modle"
    ):
        cluster.ask("deploy", {"modle": "smollm2"}, {})


def test_the_file_of_the_docs(cluster, tmp_path, smollm2_gguf):
    """As it stands there, but for the model's place and the port."""
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/ray.md").read_text(), re.DOTALL)
    assert text is not None
    file = yaml.safe_load(text[1])
    file["http_options"]["port"] = PORT
    file["applications"][0]["args"]["model"] = str(smollm2_gguf)
    path = tmp_path / "pagoda.yaml"
    path.write_text(yaml.safe_dump(file))
    serve = Path(sys.executable).with_name("serve")
    address = f"http://{cluster.facts['dashboard']}"
    subprocess.run([serve, "deploy", path, "--address", address], check=True, capture_output=True)
    deadline = time.monotonic() + 90
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="x", max_retries=0)
    with client:
        while True:
            try:
                model = client.models.list().data[0]
            except openai.APIError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
            else:
                if model.model_extra["max_model_len"] == 4096:
                    break
        reply = client.completions.create(model=model.id, prompt="One, two,", max_tokens=4)
    assert reply.usage is not None and reply.usage.completion_tokens == 4
