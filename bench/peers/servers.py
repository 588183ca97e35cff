"""Servers side by side: throughput and latency under load, start-up, memory."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.peers import environments, processes
from bench.peers.environments import SetupError
from bench.peers.llama_server import llama_server
from bench.peers.models import model_path
from bench.peers.paths import CACHE
from pagoda.base.errors import PagodaError
from pagoda.bench.client import LoadClient, Prompt, first_model
from pagoda.bench.datasets import DatasetConfig
from pagoda.bench.serve import LoadConfig, bench_serve

NEW_TOKENS = 64
# A shared part and one's own, which with the template's system message and marks are about 227
# tokens of the default model, 60 to 70 of them shared.
_SHARED, _OWN = 40, 157
_START_SECONDS = 600.0
# The KV pool that memory is measured with: all of it is written to by 64 requests.
_POOL = 128 << 20
# Layers, K and V, KV heads, their size and bytes per token of the default model.
_KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
# llama-server shares it out evenly to as many requests as it serves at a time.
_LLAMA_PARALLEL = 64
_LLAMA_CONTEXT = _LLAMA_PARALLEL * 512


@dataclass(frozen=True)
class ServerKind:
    name: str
    file: str
    command: Callable[[Path, int], list[str]]
    """Of a model and the number of threads; the port follows."""
    kv_bytes: int
    """What its KV pool takes of its memory in `measure_memory`."""
    memory_flags: tuple[str, ...] = ()
    variables: Callable[[int], dict[str, str]] = lambda threads: {}


def _pagoda(model: Path, threads: int) -> list[str]:
    # As its peers serve by default: a token of each request in a step.
    flags = ["--threads", str(threads), "--spec-method", "none"]
    return [sys.executable, "-m", "pagoda", "serve", str(model), *flags]


def _llama(model: Path, threads: int) -> list[str]:
    return [
        str(llama_server()), "-m", str(model), "--parallel", str(_LLAMA_PARALLEL),
        "-c", str(_LLAMA_CONTEXT), "-t", str(threads),
    ]  # fmt: skip


def _vllm(model: Path, threads: int) -> list[str]:
    program = environments.VLLM.ready().with_name("vllm")
    return [
        str(program), "serve", str(model), "--dtype", "bfloat16", "--max-model-len", "1024",
        "--max-num-seqs", "32",
    ]  # fmt: skip


KINDS = (
    ServerKind("Pagoda q4_1", "q4_1", _pagoda, _POOL, ("--kv-cache-memory-bytes", str(_POOL))),
    *(
        ServerKind(
            f"llama-server {file}", file, _llama, _LLAMA_CONTEXT * _KV_BYTES_PER_TOKEN
        )
        for file in ("q4_1", "q4_0", "bf16")
    ),
    ServerKind("vllm bf16", "hf", _vllm, 2 << 30, variables=environments.vllm_variables),
)  # fmt: skip


class Server:
    """Starts at once, and is ready when made. Raises SetupError where it is not to be had."""

    def __init__(self, kind: ServerKind, threads: int, more: tuple[str, ...] = ()):
        self.kind = kind
        port = _free_port()
        words = [*kind.command(model_path(kind.file), threads), *more]
        self.url = f"http://127.0.0.1:{port}"
        self.flags = " ".join([Path(words[0]).name, *(_short(word) for word in words[1:])])
        self._log = CACHE / f"{kind.name.replace(' ', '-')}.log"
        self.started = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*words, "--host", "127.0.0.1", "--port", str(port)], text=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | kind.variables(threads),
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            self._wait()
        except SetupError:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - self.started

    def first_token(self) -> float:
        """Seconds from the command to the first token of a request."""
        return asyncio.run(self._first_token()) - self.started

    def load(self, concurrency: int, requests: int, seed: int) -> dict[str, Any]:
        """Figures of `bench serve`. Raises SetupError where a request fails."""
        load = LoadConfig(
            base_url=self.url, backend="openai-chat", max_concurrency=concurrency,
            ignore_eos=True, temperature=0.0, metric_percentiles="50,99",
        )  # fmt: skip
        dataset = DatasetConfig(
            num_prompts=requests, seed=seed, random_prefix_len=_SHARED, random_input_len=_OWN,
            random_output_len=NEW_TOKENS,
        )  # fmt: skip
        try:
            result, _ = asyncio.run(bench_serve(load, dataset, progress=lambda done, total: None))
        except PagodaError as error:
            raise SetupError(str(error)) from error
        if result["failed"]:
            raise SetupError(f"{result['failed']} of {requests} requests failed")
        return {
            "tok_s": result["output_throughput"],
            "ttft_p50": result["p50_ttft_ms"],
            "ttft_p99": result["p99_ttft_ms"],
            "itl_p50": result["p50_itl_ms"],
            "itl_p99": result["p99_itl_ms"],
            "prompt_tokens": result["total_input_tokens"] / requests,
        }

    def close(self) -> None:
        processes.end(self._process)

    def _wait(self) -> None:
        deadline = time.perf_counter() + _START_SECONDS
        with httpx.Client(base_url=self.url, trust_env=False) as http:
            while time.perf_counter() < deadline:
                if self._process.poll() is not None:
                    raise SetupError(self._last_words())
                try:
                    if http.get("/health").status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.01)
        raise SetupError(f"it was not ready after {_START_SECONDS:.0f} s")

    async def _first_token(self) -> float:
        async with httpx.AsyncClient(base_url=self.url, timeout=600, trust_env=False) as http:
            client = LoadClient(http, "/v1/chat/completions", await first_model(http))
            record = await client.send(Prompt("Hello", prompt_tokens=1, output_tokens=8))
        if record.error:
            raise SetupError(record.error)
        return record.started + record.ttft

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        return lines[-1].strip() if lines else "it ended without a word"


def measure_startup(kind: ServerKind, threads: int) -> dict[str, float]:
    """Seconds of a bare `import torch`, then of a start until the first token."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_torch = time.perf_counter() - begun
    server = Server(kind, threads)
    try:
        return {"import_torch": import_torch, "first_token": server.first_token()}
    finally:
        server.close()


def measure_memory(kind: ServerKind, threads: int, requests: int) -> dict[str, float]:
    """Peak bytes (PSS) of all its processes under load, and without the KV pool."""
    server = Server(kind, threads, kind.memory_flags)
    try:
        peak, done = processes.proportional_bytes(server.pid), threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.2):
                peak = max(peak, processes.proportional_bytes(server.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            server.load(16, requests, seed=1)
        finally:
            done.set()
            watcher.join()
    finally:
        server.close()
    return {"peak": peak, "without_kv": peak - kind.kv_bytes}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _short(word: str) -> str:
    return Path(word).name if "/" in word else word
