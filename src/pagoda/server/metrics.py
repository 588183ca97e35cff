"""Prometheus metrics under vLLM's names, so that dashboards made for it work."""

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.engine.served.model import ServedModel
from pagoda.server.engine_metrics import LABELS, EngineCollector, Models, cumulated
from pagoda.server.http.looplag import LoopLag
from pagoda.server.keys.account import Meter
from pagoda.server.llama_metrics import LlamaCollector

TICK = 0.1
"""Seconds after which uvicorn's loop looks around, and the lag is measured."""

_SECONDS_LONG = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_SECONDS_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_SECONDS_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_COUNTS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_SMALL_COUNTS = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, 1, 2, 3, 4, 5, 10, 20)

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Seconds from arrival to the first token.", _SECONDS_FIRST),
    "inter_token_latency_seconds": ("Seconds between a token and the next.", _SECONDS_TOKEN),
    "request_time_per_output_token_seconds": (
        "Mean seconds per token of a request, the first left out.", _SECONDS_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Seconds from arrival to the last token.", _SECONDS_LONG),
    "request_queue_time_seconds": ("Seconds a request waited.", _SECONDS_LONG),
    "request_inference_time_seconds": ("Seconds a request was running.", _SECONDS_LONG),
    "request_prefill_time_seconds": ("Seconds from running to the first token.", _SECONDS_LONG),
    "request_decode_time_seconds": ("Seconds from the first token to the last.", _SECONDS_LONG),
    "request_prompt_tokens": ("Prompt tokens of a request.", _COUNTS),
    "request_generation_tokens": ("Generated tokens of a request.", _COUNTS),
    "request_max_num_generation_tokens": ("Those of a prompt's longest choice.", _COUNTS),
    "request_num_preemptions": ("How often a request was preempted.", _PREEMPTIONS),
    "request_params_n": ("The n of a request.", _SMALL_COUNTS),
    "request_params_max_tokens": ("The max_tokens of a request.", _COUNTS),
}  # fmt: skip
_FINISH_REASONS = ("stop", "length", "abort", "error")


class Buckets:
    """A histogram without the lock that prometheus_client's takes, and the walk over its bounds:
    it counts each token."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, cumulated(self._bounds, self._counts), self.sum)


class EngineMetrics:
    """What is counted of the requests at one engine: label look-ups are done once, not per
    token."""

    def __init__(self, registry: "Metrics", *labels: str):
        self.labels = labels
        self.histogram = {key: Buckets(bounds) for key, (_, bounds) in _HISTOGRAMS.items()}
        self.finished = {r: registry.success.labels(*labels, r) for r in _FINISH_REASONS}
        self.prompt_tokens = registry.prompt_tokens.labels(*labels)
        self.cached_tokens = registry.cached_tokens.labels(*labels)
        self.by_source = {
            source: registry.prompt_by_source.labels(*labels, source)
            for source in ("local_compute", "local_cache_hit")
        }


class ModelMetrics:
    """Those of a model's engines."""

    def __init__(self, registry: "Metrics", name: str, num_engines: int):
        self.engines = [EngineMetrics(registry, name, str(index)) for index in range(num_engines)]
        self._parsed = partial(registry.tool_parsing.labels, *self.engines[0].labels)

    def count_tool_parsing(self, route: str, *, streamed: bool, called: bool) -> None:
        """A choice of a request that offered tools is complete. The server parses, whichever
        engine wrote it."""
        mode = "streaming" if streamed else "non_streaming"
        self._parsed("tool_call" if called else "no_tool_call", mode, route).inc()


class Metrics:
    """One registry per app, so that several apps live in one process."""

    def __init__(self, models: Models):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(EngineCollector(models))
        self._models: dict[str, ModelMetrics] = {}
        self.registry.register(_HistogramCollector(self._models))
        self.registry.register(
            LlamaCollector(
                lambda: [engine.stats for served in models() for engine in served.client.engines],
                self._seconds,
            )
        )
        self.success = self._counter("request_success", "Finished requests.", "finished_reason")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of served requests.")
        self.cached_tokens = self._counter("prompt_tokens_cached", "Those found in the cache.")
        self.prompt_by_source = self._counter(
            "prompt_tokens_by_source", "Prompt tokens, computed or found.", "source"
        )
        self.tool_parsing = self._counter(
            "tool_call_parser_invocations", "Choices whose text was searched for tool calls.",
            "outcome", "mode", "request_type",
        )  # fmt: skip
        self.http_requests = Counter(
            "http_requests", "HTTP requests.", ("handler", "method", "status"),
            registry=self.registry,
        )  # fmt: skip
        self.http_seconds = Histogram(
            "http_request_duration_seconds", "Seconds until a reply was complete.",
            ("handler", "method"), buckets=(0.1, 0.5, 1, 5, 30, 120), registry=self.registry,
        )  # fmt: skip
        self.lag = LoopLag(TICK)
        Gauge(
            "pagoda:event_loop_lag_seconds",
            "How late the server's event loop was at worst in the last 30 to 60 seconds.",
            registry=self.registry,
        ).set_function(self.lag.seconds)
        self.load = 0
        """Generating HTTP requests in flight."""

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", doc, (*LABELS, *labels), registry=self.registry)

    def of(self, served: ServedModel) -> ModelMetrics:
        name = served.names[0]
        if name not in self._models:
            self._models[name] = ModelMetrics(self, name, len(served.client.engines))
        return self._models[name]

    def _seconds(self) -> tuple[float, float]:
        """What prompts and replies took, of all models."""
        engines = [engine.histogram for engine in _engines(self._models)]
        prefill = sum(histogram["request_prefill_time_seconds"].sum for histogram in engines)
        decode = sum(histogram["request_decode_time_seconds"].sum for histogram in engines)
        return prefill, decode

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Siblings:
    """The choices of one prompt."""

    def __init__(self, n: int, meter: Meter | None = None):
        self.n = n
        self.meter = meter
        self._running = n
        self._most_tokens = 0
        self._prompt_is_free = True

    def take_prompt(self) -> bool:
        """True for the first that asks: the prompt, which they share, counts once."""
        taken, self._prompt_is_free = self._prompt_is_free, False
        return taken

    def finish(self, num_tokens: int, metrics: EngineMetrics) -> None:
        self._running -= 1
        self._most_tokens = max(self._most_tokens, num_tokens)
        if self._running == 0:
            histogram = metrics.histogram["request_max_num_generation_tokens"]
            histogram.observe(self._most_tokens)


_NUMBERS = itertools.count()


class RequestTimer:
    """Times one engine request from its deltas. One that goes on at another engine counts there
    from then on."""

    def __init__(self, model: ModelMetrics, request: AddRequest, siblings: Siblings):
        self._engines = model.engines
        self._metrics = model.engines[0]
        self._siblings = siblings
        self._meter, self._counts_prompt = siblings.meter, siblings.take_prompt()
        self.number = next(_NUMBERS)
        """Counts the requests since the server started."""
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_cached_tokens = 0
        self.num_prompt_done = 0
        """Prompt tokens that are there, found or computed, while the prompt is worked on."""
        self.num_tokens = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._max_tokens = request.sampling.max_tokens
        self._num_preemptions = 0
        self._finished = False
        self._arrival = time.monotonic()
        self._first = 0.0
        self._last = 0.0
        self._queued: float | None = None

    @property
    def waited_seconds(self) -> float:
        """Since it was asked."""
        return time.monotonic() - self._arrival

    @property
    def prompt_seconds(self) -> float:
        """From admission to the first token; 0 until there is one."""
        return self._first - self._arrival - (self._queued or 0.0) if self._first else 0.0

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return self._last - self._first

    def observe(self, delta: RequestDelta, num_tokens: int, finish_reason: str | None) -> None:
        """`num_tokens` of the delta's belong to the reply: a stop string may end it before them
        all."""
        now = time.monotonic()
        if delta.engine is not None:
            self._metrics = self._engines[delta.engine]
        if delta.prompt_progress is not None:
            self.num_prompt_done, self.num_cached_tokens = delta.prompt_progress
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
            self._count_prompt(delta.num_cached_tokens)
            if self._meter is not None and self._counts_prompt and self._queued is None:
                self._meter.count(cached=delta.num_cached_tokens)
            self._queued = delta.queue_seconds
        if num_tokens:
            histogram = self._metrics.histogram
            if self.num_tokens == 0:
                self._first = now
                histogram["time_to_first_token_seconds"].observe(now - self._arrival)
            else:
                histogram["inter_token_latency_seconds"].observe(now - self._last)
            self._last = now
            self.num_tokens += num_tokens
            if self._meter is not None:
                self._meter.count(completion=num_tokens)
        if delta.num_draft_tokens:
            self.num_draft_tokens = delta.num_draft_tokens
            # Some may stand behind a stop string.
            self.num_accepted_tokens = min(delta.num_accepted_tokens, self.num_tokens)
        if finish_reason is not None:
            self._num_preemptions = delta.num_preemptions
            self._finish(finish_reason, now)

    def close(self) -> None:
        """Count a request that ended without a last delta: its client or its engine is gone."""
        if not self._finished:
            self._finish("abort", time.monotonic())

    def _count_prompt(self, cached: int) -> None:
        self._metrics.prompt_tokens.inc(self.num_prompt_tokens)
        self._metrics.cached_tokens.inc(cached)
        self._metrics.by_source["local_cache_hit"].inc(cached)
        self._metrics.by_source["local_compute"].inc(self.num_prompt_tokens - cached)

    def _finish(self, reason: str, now: float) -> None:
        histogram = self._metrics.histogram
        self._finished = True
        self._metrics.finished.get(reason, self._metrics.finished["stop"]).inc()
        histogram["e2e_request_latency_seconds"].observe(now - self._arrival)
        histogram["request_prompt_tokens"].observe(self.num_prompt_tokens)
        histogram["request_generation_tokens"].observe(self.num_tokens)
        histogram["request_num_preemptions"].observe(self._num_preemptions)
        histogram["request_params_n"].observe(self._siblings.n)
        self._siblings.finish(self.num_tokens, self._metrics)
        if self._max_tokens is not None:
            histogram["request_params_max_tokens"].observe(self._max_tokens)
        if self._queued is not None:
            histogram["request_queue_time_seconds"].observe(self._queued)
            histogram["request_inference_time_seconds"].observe(now - self._arrival - self._queued)
        if self.num_tokens:
            if self._queued is not None:
                histogram["request_prefill_time_seconds"].observe(
                    self._first - self._arrival - self._queued
                )
            decode = self._last - self._first
            histogram["request_decode_time_seconds"].observe(decode)
            if self.num_tokens > 1:
                histogram["request_time_per_output_token_seconds"].observe(
                    decode / (self.num_tokens - 1)
                )


class _HistogramCollector(Collector):
    def __init__(self, models: dict[str, ModelMetrics]):
        self._models = models

    def collect(self) -> Iterable[Metric]:
        for key, (doc, _) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"vllm:{key}", doc, labels=LABELS)
            for engine in _engines(self._models):
                engine.histogram[key].add_to(family, engine.labels)
            yield family


def _engines(models: dict[str, ModelMetrics]) -> Iterable[EngineMetrics]:
    return chain.from_iterable(model.engines for model in models.values())
