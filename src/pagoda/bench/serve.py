"""`bench serve`: a load test of any OpenAI-compatible server, with vLLM's flags and figures."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from pagoda.base.errors import ConfigError
from pagoda.bench.client import LoadClient, Prompt, ServerTokenizer, first_model
from pagoda.bench.datasets import DatasetConfig, load_dataset
from pagoda.bench.guesses import read_guesses, summarize_guesses
from pagoda.bench.serving_table import serving_table
from pagoda.bench.sse import ServerError, is_this_machine
from pagoda.bench.stats import METRICS, RequestRecord, summarize
from pagoda.config.option import Options, option

_ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}


@dataclass(frozen=True)
class LoadConfig(Options):
    """Which server, and how it is asked."""

    base_url: str | None = option(None, "The server, such as http://127.0.0.1:8000.")
    host: str = option("127.0.0.1", "The server's host, where --base-url is not given.")
    port: int = option(8000, "The server's port.", bounds=(1, 65535))
    backend: str = option(
        "openai", "Which API: completions or chat.",
        choices=tuple(_ENDPOINTS), aliases=("--endpoint-type",),
    )  # fmt: skip
    endpoint: str | None = option(None, "Another path than the backend's.")
    model: str | None = option(
        None, "The model's name; the server's first by default.", aliases=("--served-model-name",)
    )
    api_key: str | None = option(None, "Key for the server; also PAGODA_API_KEY.")
    header: tuple[str, ...] = option((), "Further headers, KEY=VALUE.")
    request_rate: float = option(math.inf, "Requests per second; inf sends all at once.")
    burstiness: float = option(
        1.0, "1 is a Poisson process; less comes in bursts, more evenly.", bounds=(1e-6, 1e6)
    )
    max_concurrency: int | None = option(None, "Most requests under way.", bounds=(1, 10**6))
    ignore_eos: bool = option(False, "Generate as many tokens as asked for.")
    temperature: float | None = option(0.0, "Sampling temperature.")
    top_p: float | None = option(None, "Nucleus sampling.")
    top_k: int | None = option(None, "Sample among so many tokens.")
    min_p: float | None = option(None, "Least probability relative to the best token.")
    extra_body: dict[str, Any] = option(
        None, "JSON of further fields for every request.", parse=json.loads, factory=dict
    )
    num_warmups: int = option(0, "Requests before the clock starts.")
    percentile_metrics: str = option("ttft,tpot,itl", "Which of ttft, tpot, itl, e2el to print.")
    metric_percentiles: str = option("99", "Percentiles, such as 50,90,99.")
    goodput: tuple[str, ...] = option((), "Limits in ms of a good request, such as ttft:200.")
    save_result: bool = option(False, "Write the result as JSON.")
    save_detailed: bool = option(False, "With every request's times and text.")
    result_dir: str = option(".", "Where to.")
    result_filename: str | None = option(None, "Under which name.")
    label: str | None = option(None, "A label in the result.")
    metadata: tuple[str, ...] = option((), "KEY=VALUE pairs in the result.")

    @property
    def url(self) -> str:
        url = self.base_url or f"http://{self.host}:{self.port}"
        return url.rstrip("/").removesuffix("/v1")


async def bench_serve(
    load: LoadConfig, dataset: DatasetConfig, *, progress: Callable[[int, int], None]
) -> tuple[dict[str, Any], str]:
    """Run the test; (the result under vLLM's JSON keys, the table to print).

    `progress` is told finished and total requests. Raises ServerError when the server does not
    answer the first request as it should, ConfigError for flags that make no sense.
    """
    metrics, percentiles = _metrics(load), _percentiles(load)
    goodput = _goodput(load)
    async with _http(load) as http:
        model = load.model or await first_model(http)
        endpoint = load.endpoint or _ENDPOINTS[load.backend]
        client = LoadClient(http, endpoint, model, _fields(load))
        tokenizer = ServerTokenizer(http, model)
        # One prompt more than asked for: the warm-up's own, or the first of the others would hit
        # the prefix cache.
        more = replace(dataset, num_prompts=dataset.num_prompts + 1)
        *prompts, first = await load_dataset(more, tokenizer, chat=client.is_chat)
        await _warm_up(client, first, load.num_warmups)
        guessed = await read_guesses(http)
        started = time.perf_counter()
        records = await _run(client, prompts, load, dataset.seed, progress)
        duration = time.perf_counter() - started
        guesses = summarize_guesses(guessed, await read_guesses(http))
    result = _describe(load, dataset, model)
    result |= summarize(records, duration, percentiles=percentiles, goodput=goodput)
    result |= guesses
    table = serving_table(result, metrics, percentiles)
    if load.save_detailed:
        result |= _details(records)
    return result, table


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start at which each request is sent.

    Gaps follow a gamma distribution of mean 1/rate, and are scaled so that the last request
    leaves at count/rate exactly: two runs of one rate take the same time.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    times = np.cumsum(gaps)
    return [float(moment) for moment in times * (count / rate / times[-1])]


async def _run(
    client: LoadClient,
    prompts: Sequence[Prompt],
    load: LoadConfig,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[RequestRecord]:
    gate = (
        asyncio.Semaphore(load.max_concurrency)
        if load.max_concurrency
        else contextlib.nullcontext()
    )
    finished = 0

    async def send(prompt: Prompt, moment: float) -> RequestRecord:
        nonlocal finished
        await asyncio.sleep(origin + moment - time.perf_counter())
        async with gate:
            record = await client.send(prompt)
        finished += 1
        progress(finished, len(prompts))
        return record

    moments = arrival_times(len(prompts), load.request_rate, load.burstiness, seed)
    origin = time.perf_counter()
    tasks = [send(prompt, moment) for prompt, moment in zip(prompts, moments, strict=True)]
    return await asyncio.gather(*tasks)


async def _warm_up(client: LoadClient, prompt: Prompt, count: int) -> None:
    """One request at least: a server that cannot answer it is not worth a thousand more."""
    records = await asyncio.gather(*(client.send(prompt) for _ in range(max(1, count))))
    for record in records:
        if not record.success:
            raise ServerError(f"The first request failed. {record.error}")


@contextlib.asynccontextmanager
async def _http(load: LoadConfig) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    headers |= _pairs(load.header, "--header")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    local = is_this_machine(load.url)
    async with httpx.AsyncClient(
        base_url=load.url, headers=headers, timeout=None, limits=limits, trust_env=not local
    ) as http:
        yield http


def _fields(load: LoadConfig) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p")
    fields = {name: getattr(load, name) for name in names if getattr(load, name) is not None}
    if load.ignore_eos:
        fields["ignore_eos"] = True
    return fields | load.extra_body


def _describe(load: LoadConfig, dataset: DatasetConfig, model: str) -> dict[str, Any]:
    infinite = math.isinf(load.request_rate)
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": load.backend,
        "backend": load.backend,
        "label": load.label,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": dataset.num_prompts,
        **_pairs(load.metadata, "--metadata"),
        "request_rate": "inf" if infinite else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
    }


def _details(records: Sequence[RequestRecord]) -> dict[str, Any]:
    return {
        "start_times": [record.started for record in records],
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
    }


def result_path(load: LoadConfig, result: dict[str, Any]) -> Path:
    """Where the JSON goes, named as vLLM names it."""
    model = str(result["model_id"]).rpartition("/")[2]
    limit = f"-concurrency{load.max_concurrency}" if load.max_concurrency else ""
    name = f"{load.backend}-{load.request_rate}qps{limit}-{model}-{result['date']}.json"
    return Path(load.result_dir) / (load.result_filename or name)


def _metrics(load: LoadConfig) -> list[str]:
    metrics = [name.strip() for name in load.percentile_metrics.split(",") if name.strip()]
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise ConfigError(f"--percentile-metrics knows {', '.join(METRICS)}, not {unknown[0]!r}.")
    return metrics


def _percentiles(load: LoadConfig) -> list[float]:
    try:
        values = [float(text) for text in load.metric_percentiles.split(",")]
    except ValueError:
        values = [-1.0]
    if any(not 0 <= value <= 100 for value in values):
        raise ConfigError("--metric-percentiles takes numbers from 0 to 100, such as 50,90,99.")
    return values


def _goodput(load: LoadConfig) -> dict[str, float] | None:
    limits = {}
    for entry in load.goodput:
        metric, _, text = entry.partition(":")
        if metric not in ("ttft", "tpot", "e2el") or not text.replace(".", "", 1).isdigit():
            raise ConfigError(f"--goodput takes ttft:MS, tpot:MS or e2el:MS, not {entry!r}.")
        limits[metric] = float(text)
    return limits or None


def _pairs(entries: Sequence[str], flag: str) -> dict[str, str]:
    for entry in entries:
        if "=" not in entry:
            raise ConfigError(f"{flag} takes KEY=VALUE, not {entry!r}.")
    return dict(entry.split("=", 1) for entry in entries)
