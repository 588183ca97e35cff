"""What engines count of themselves, for Prometheus under vLLM's names."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pagoda.core.messages import STEP_TOKENS, EngineStats
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.served.model import ServedModel

Models = Callable[[], list[ServedModel]]
LABELS = ("model_name", "engine")


def cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


class EngineCollector(Collector):
    """The engines' own counters, read when they are scraped. A restart resets them, as usual."""

    def __init__(self, models: Models):
        self._models = models

    def collect(self) -> Iterable[Metric]:
        clients = [
            ((served.names[0], str(index)), engine)
            for served in self._models()
            for index, engine in enumerate(served.client.engines)
        ]
        for kind, values in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, doc, read in values:
                family: Any = kind(f"vllm:{name}", doc, labels=LABELS)
                for labels, client in clients:
                    family.add_metric(labels, read(client.stats))
                yield family
        for kind, name, doc, of_client in _OWN:
            family = kind(f"pagoda:{name}", doc, labels=LABELS)
            for labels, client in clients:
                family.add_metric(labels, of_client(client))
            yield family
        for kind, name, doc, label, split in _SPLIT:
            family = kind(name, doc, labels=(*LABELS, label))
            for labels, client in clients:
                for part, value in split(client).items():
                    family.add_metric((*labels, part), value)
            yield family
        steps = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens of a step.", labels=LABELS
        )
        for labels, client in clients:
            counts = client.stats.steps_by_tokens or [0] * (len(STEP_TOKENS) + 1)
            total = client.stats.computed_tokens
            steps.add_metric(labels, cumulated(STEP_TOKENS, counts), total)
        yield steps
        yield from _speculation(clients)
        yield _cache_config(clients)
        yield _adapters(clients)


def _speculation(clients: Iterable[tuple[tuple[str, str], EngineClient]]) -> Iterable[Metric]:
    """What came of guessed tokens. llama-server has vLLM's counters under its own prefix."""
    for program in ("vllm", "llamacpp"):
        for name, doc, read in _GUESSES:
            family = CounterMetricFamily(f"{program}:spec_decode_{name}", doc, labels=LABELS)
            for labels, client in clients:
                family.add_metric(labels, read(client.stats))
            yield family
        family = CounterMetricFamily(
            f"{program}:spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that came true, by place in the guess.",
            labels=(*LABELS, "position"),
        )
        for labels, client in clients:
            for place, count in enumerate(client.stats.spec_accepted_per_position):
                family.add_metric((*labels, str(place)), count)
        yield family


def _cache_config(clients: Iterable[tuple[tuple[str, str], EngineClient]]) -> Metric:
    info = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache, as labels.",
        labels=(
            *LABELS, "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "cache_dtype",
        ),
    )  # fmt: skip
    for labels, client in clients:
        ready = client.ready
        if ready is not None:
            shape = (str(ready.block_size), str(ready.num_blocks), str(ready.kv_tokens))
            info.add_metric((*labels, *shape, ready.kv_cache_dtype), 1)
    return info


def _adapters(clients: Iterable[tuple[tuple[str, str], EngineClient]]) -> Metric:
    """Which adapters are in use, for each model with room for some. As in vLLM all is in the
    labels, and the value is a time, by which readers tell the latest."""
    info = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters that requests run with or wait for; seconds since 1970.",
        labels=(*LABELS, "max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    )
    for labels, client in clients:
        most = 0 if client.ready is None else client.ready.max_loras
        if most:
            running, waiting = map(",".join, client.busy_adapters())
            info.add_metric((*labels, str(most), waiting, running), time.time())
    return info


def kv_usage(stats: EngineStats) -> float:
    """0 to 1."""
    return 1 - stats.blocks_free / stats.blocks_total if stats.blocks_total else 0.0


def _waiting(stats: EngineStats) -> dict[str, int]:
    return {"capacity": stats.num_waiting - stats.num_held, "deferred": stats.num_held}


_GAUGES = (
    ("num_requests_running", "Requests that take part in steps.", lambda s: s.num_running),
    ("num_requests_waiting", "Requests that wait.", lambda s: s.num_waiting),
    ("kv_cache_usage_perc", "Share of KV blocks in use, 1 is all.", kv_usage),
)
_COUNTERS = (
    ("num_preemptions", "Preempted requests.", lambda s: s.num_preemptions),
    ("generation_tokens", "Generated tokens.", lambda s: s.generation_tokens),
    ("prefix_cache_queries", "Prompt tokens looked up in the cache.", lambda s: s.prefix_queries),
    ("prefix_cache_hits", "Prompt tokens found in the cache.", lambda s: s.prefix_hits),
    ("iterations", "Steps of the engine.", lambda s: s.num_steps),
)
_GUESSES: tuple[tuple[str, str, Callable[[EngineStats], int]], ...] = (
    ("num_drafts", "Times that a request's guessed tokens were verified.", lambda s: s.spec_drafts),
    ("num_draft_tokens", "Guessed tokens that were verified.", lambda s: s.spec_draft_tokens),
    ("num_accepted_tokens", "Guessed tokens that came true.", lambda s: s.spec_accepted_tokens),
)
_OWN: tuple[tuple[Any, str, str, Callable[[EngineClient], float]], ...] = (
    (
        GaugeMetricFamily, "engine_stalled",
        "1: the engine makes no progress, and is killed if that goes on.",
        lambda c: c.stalled is not None,
    ),
    (
        GaugeMetricFamily, "engine_heartbeat_age_seconds",
        "Since the engine said anything; one that is well says something each second or two.",
        lambda c: c.silent_seconds,
    ),
    *(
        (CounterMetricFamily, f"kv_transfer{name}", doc, read)
        for name, doc, read in (
            ("s", "Prompts that waited for another engine's KV.", lambda c: c.stats.kv_fetches),
            ("_seconds", "That they waited.", lambda c: c.stats.kv_fetch_seconds),
            ("_received_bytes", "KV that came.", lambda c: c.stats.kv_fetched_bytes),
            ("_sent_bytes", "KV that others fetched.", lambda c: c.stats.kv_sent_bytes),
        )
    ),
    (
        CounterMetricFamily, "engine_restarts", "Processes started after the engine had died.",
        lambda c: c.restarts,
    ),
)  # fmt: skip
_SPLIT: tuple[tuple[Any, str, str, str, Callable[[EngineClient], dict[str, int]]], ...] = (
    (
        GaugeMetricFamily, "vllm:num_requests_waiting_by_reason",
        "Requests that wait for room, and those that wait for something else.", "reason",
        lambda c: _waiting(c.stats),
    ),
    (
        GaugeMetricFamily, "vllm:engine_sleep_state", "1 at the state that holds.",
        "sleep_state",
        lambda c: {
            "awake": int(not c.asleep), "weights_offloaded": int(c.asleep), "discard_all": 0,
        },
    ),
    (
        CounterMetricFamily, "vllm:admission_rejections", "Requests refused because others wait.",
        "reason", lambda c: c.queue.rejections,
    ),
    (
        CounterMetricFamily, "pagoda:kv_transfer_failures",
        "Prompts computed although their KV blocks were elsewhere.",
        "reason", lambda c: c.stats.kv_fetch_failures,
    ),
)  # fmt: skip
