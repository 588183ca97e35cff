"""A model whose ranks are actors of Ray, on three nodes that one machine plays: 1, 1 and 2 CPUs."""

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pagoda import LLM, SamplingParams
from pagoda.base.errors import ConfigError
from pagoda.config.engine import DeviceConfig, EngineConfig, ParallelConfig
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny
from tests.system.conftest import starter
from tests.system.harness import Served, wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'pagoda-llm[ray]')")

PROMPTS = ["Hello, this is", "abc", "What about birds?"]
_STORE_BYTES = 80 << 20
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Cluster:
    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        head = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        self.nodes = Nodes(initialize_head=True, head_node_args=head)
        for count in (1, 2):
            self.nodes.add_node(num_cpus=count, object_store_memory=_STORE_BYTES)
        ray.init(self.nodes.address, log_to_driver=False)

    def is_free(self) -> bool:
        """No actor and no group has anything."""
        found = ray.util.placement_group_table().values()
        groups = [group for group in found if group["state"] != "REMOVED"]
        total, free = ray.cluster_resources(), ray.available_resources()
        return not groups and not actors() and free.get("CPU") == total["CPU"]

    def remove_node_of(self, pid: int) -> None:
        """At once, as a machine without power goes."""
        parents = set(parents_of(pid))
        for node in self.nodes.list_all_nodes():
            started = {each.process.pid for kind in node.all_processes.values() for each in kind}
            if parents & started:
                self.nodes.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        ray.shutdown()
        self.nodes.shutdown()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()  # here, so that tests of other files do not hear of Ray's sockets


def parents_of(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def actors() -> list[int]:
    """The processes of ranks."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::PagodaRank"):
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        made = Cluster()
        patch.setenv("RAY_ADDRESS", made.nodes.address)
        yield made
        made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", vocab_size=260, max_position_embeddings=2048).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write(folder: Path, **options: Any) -> list[list[int]]:
    llm = LLM(
        str(folder), dtype="float32", device="cpu", max_model_len=200,
        num_gpu_blocks_override=64, **options,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    try:
        return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, sampling)]
    finally:
        llm._core.shutdown()


@pytest.fixture(scope="module")
def alone(folder) -> list[list[int]]:
    return write(folder, threads=1)


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2), (2, 2)])
def test_tokens_are_those_of_one_process(cluster, folder, alone, tensor, stages):
    """The engine's node has room for rank 0 alone, so the ranks meet over the network."""
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    assert write(folder, distributed_executor_backend="ray", **split) == alone
    wait_until(cluster.is_free, 20)


def test_a_cluster_that_is_too_small(cluster, folder, monkeypatch):
    from pagoda.engine.ranks import ray_ranks

    monkeypatch.setattr(ray_ranks, "_GRACE_SECONDS", 0.0)
    parallel = ParallelConfig(pipeline_parallel_size=5, distributed_executor_backend="ray")
    config = EngineConfig(parallel=parallel, device=DeviceConfig("cpu"))
    with pytest.raises(
        ConfigError, match=r"size 5 needs 5 CPUs of Ray, and its cluster has: \d on"
    ):
        ray_ranks.RayStarter(config)
    wait_until(cluster.is_free, 20)


def complete(served: Served) -> str:
    reply = served.openai().completions.create(
        model=served.name, prompt="Once", max_tokens=8, temperature=0
    )
    return reply.choices[0].text


def broken(served: Served, how: Any) -> str:
    """What a stream says that `how` breaks off."""
    reply = served.openai().completions.create(
        model=served.name, prompt="Once", max_tokens=590, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(reply)
    how()
    with pytest.raises(openai.APIError) as told:
        list(reply)
    return str(told.value)


def healthy(served: Served) -> bool:
    return httpx.get(f"{served.url}/health").status_code == 200


def test_deaths_under_a_stream(cluster, folder):
    """Of a rank, of the engine, of a node; then the server's end leaves nothing in the cluster."""
    with starter() as start:
        served = start(
            folder, "-pp", "2", "--distributed-executor-backend", "ray", "--dtype", "float32",
            "--device", "cpu", "--num-gpu-blocks-override", "41", "--max-model-len", "600",
        )  # fmt: skip
        served.wait_ready(90)
        text = complete(served)
        (first,) = actors()
        told = broken(served, lambda: os.kill(first, signal.SIGKILL))
        assert f"The process {first} of rank 1 on node" in told and "killed or crashed" in told
        wait_until(lambda: healthy(served) and complete(served) == text, 90)
        (second,) = actors()
        assert second != first

        told = broken(served, lambda: os.kill(served.engine_pid(), signal.SIGKILL))
        assert "ended by SIGKILL" in told
        wait_until(lambda: second not in actors(), 30)
        wait_until(lambda: healthy(served) and complete(served) == text, 90)

        (third,) = actors()
        told = broken(served, lambda: cluster.remove_node_of(third))
        assert "rank 1 on node" in told and "node" in told.partition("rank 1 on node")[2]
        wait_until(lambda: healthy(served) and complete(served) == text, 120)
    wait_until(cluster.is_free, 30)
