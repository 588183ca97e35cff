"""Metrics under llama-server's names: without labels, summed over the models that are loaded."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pagoda.core.messages import EngineStats


class LlamaCollector(Collector):
    """Read when it is scraped. `stats` gives those of every engine, `seconds` the prompts' and the
    replies' of all requests that have ended."""

    def __init__(
        self,
        stats: Callable[[], list[EngineStats]],
        seconds: Callable[[], tuple[float, float]],
    ):
        self._stats = stats
        self._seconds = seconds

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        prompt_seconds, reply_seconds = self._seconds()
        prompt, reply = (
            sum(one.prompt_tokens for one in stats), sum(one.generation_tokens for one in stats),
        )  # fmt: skip
        looked_up, found = (
            sum(one.prefix_queries for one in stats), sum(one.prefix_hits for one in stats),
        )  # fmt: skip
        yield _counter("prompt_tokens", "Prompt tokens computed.", prompt)
        yield _counter("prompt_tokens_cached", "Prompt tokens found in the cache.", found)
        yield _counter("prompt_seconds", "Seconds that prompts took.", prompt_seconds)
        yield _counter("tokens_predicted", "Tokens generated.", reply)
        yield _counter("tokens_predicted_seconds", "Seconds that replies took.", reply_seconds)
        steps = sum(one.num_steps for one in stats)
        yield _counter("n_decode", "Steps of the engines.", steps)
        in_steps = sum(one.step_requests for one in stats)
        yield _gauge("n_busy_slots_per_decode", "Requests in a step.", in_steps, steps)
        longest = max((one.longest_request for one in stats), default=0)
        yield _gauge("n_tokens_max", "Tokens of the longest request that has ended.", longest)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens a second.", prompt, prompt_seconds)
        yield _gauge("predicted_tokens_seconds", "Generated tokens a second.", reply, reply_seconds)
        yield _gauge("prompt_cache_hit_ratio", "Share found in the cache.", found, looked_up)
        running, waiting = (
            sum(one.num_running for one in stats), sum(one.num_waiting for one in stats),
        )  # fmt: skip
        yield _gauge("requests_processing", "Requests that run.", running)
        yield _gauge("requests_deferred", "Requests that wait.", waiting)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"llamacpp:{name}", doc, value=value)


def _gauge(name: str, doc: str, value: float, per: float = 1) -> Metric:
    return GaugeMetricFamily(f"llamacpp:{name}", doc, value=value / per if per else 0.0)
