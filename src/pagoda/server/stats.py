"""The throughput line that vLLM's users know, every ten seconds while there is work."""

import asyncio
import time
from collections.abc import Callable

from pagoda.base.log import get_logger
from pagoda.core.messages import EngineStats
from pagoda.engine.served.model import ServedModel
from pagoda.server.metrics import kv_usage

_log = get_logger(__name__)

INTERVAL = 10.0


async def log_stats(models: Callable[[], list[ServedModel]], interval: float = INTERVAL) -> None:
    """Run until cancelled."""
    earlier: dict[str, EngineStats] = {}
    then = time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now = time.monotonic()
        for position, served in enumerate(models()):
            name, stats = served.names[0], served.client.stats
            line = throughput_line(position, earlier.get(name), stats, now - then, gpu=_gpu(served))
            if line is not None:
                _log.info("%s", line)
            earlier[name] = stats
        then = now


def throughput_line(
    position: int, earlier: EngineStats | None, stats: EngineStats, seconds: float, *, gpu: bool
) -> str | None:
    """None when nothing happened since `earlier`."""
    if earlier is None or stats.num_steps < earlier.num_steps:
        earlier = EngineStats()  # the first look, or a restarted engine
    prompt = stats.prompt_tokens - earlier.prompt_tokens
    generated = stats.generation_tokens - earlier.generation_tokens
    if not (prompt or generated or stats.num_running or stats.num_waiting):
        return None
    hit_rate = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
    return (
        f"Engine {position:03d}: "
        f"Avg prompt throughput: {prompt / seconds:.1f} tokens/s, "
        f"Avg generation throughput: {generated / seconds:.1f} tokens/s, "
        f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
        f"{'GPU ' if gpu else ''}KV cache usage: {kv_usage(stats):.1%}, "
        f"Prefix cache hit rate: {hit_rate:.1%}"
    )


def _gpu(served: ServedModel) -> bool:
    ready = served.client.ready
    return ready is not None and ready.device != "cpu"
