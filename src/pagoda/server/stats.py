"""Lines that vLLM's users know, every ten seconds while there is work: throughput, and what came of
guessed tokens; and KV blocks that moved between engines."""

import asyncio
import time
from collections.abc import Callable
from itertools import zip_longest

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.core.messages import EngineStats
from pagoda.engine.served.model import ServedModel
from pagoda.server.engine_metrics import kv_usage

_log = get_logger(__name__)

INTERVAL = 10.0


async def log_stats(models: Callable[[], list[ServedModel]], interval: float = INTERVAL) -> None:
    """Run until cancelled."""
    earlier: dict[tuple[str, int], EngineStats] = {}
    then = time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now = time.monotonic()
        engines = [
            (served, index, engine)
            for served in models()
            for index, engine in enumerate(served.client.engines)
        ]
        for position, (served, index, engine) in enumerate(engines):
            name, stats = (served.names[0], index), engine.stats
            last = earlier.get(name)
            for line in (
                throughput_line(position, last, stats, now - then, gpu=_gpu(served)),
                speculation_line(last, stats, now - then),
                transfer_line(last, stats),
            ):
                if line is not None:
                    _log.info("%s", line)
            earlier[name] = stats
        then = now


def throughput_line(
    position: int, earlier: EngineStats | None, stats: EngineStats, seconds: float, *, gpu: bool
) -> str | None:
    """None when nothing happened since `earlier`."""
    earlier = _baseline(earlier, stats)
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


def speculation_line(earlier: EngineStats | None, stats: EngineStats, seconds: float) -> str | None:
    """None when no guessed token was verified since `earlier`."""
    earlier = _baseline(earlier, stats)
    drafts = stats.spec_drafts - earlier.spec_drafts
    if not drafts:
        return None
    drafted = stats.spec_draft_tokens - earlier.spec_draft_tokens
    accepted = stats.spec_accepted_tokens - earlier.spec_accepted_tokens
    before = earlier.spec_accepted_per_position
    by_place = [
        f"{(count - last) / drafts:.3f}"
        for count, last in zip_longest(stats.spec_accepted_per_position, before, fillvalue=0)
    ]
    return (
        "SpecDecoding metrics: "
        # A step gives a token of its own behind those that came true.
        f"Mean acceptance length: {1 + accepted / drafts:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {', '.join(by_place)}, "
        f"Avg Draft acceptance rate: {accepted / drafted:.1%}"
    )


def transfer_line(earlier: EngineStats | None, stats: EngineStats) -> str | None:
    """None when no blocks moved since `earlier`."""
    earlier = _baseline(earlier, stats)
    came = stats.kv_fetched_bytes - earlier.kv_fetched_bytes
    left = stats.kv_sent_bytes - earlier.kv_sent_bytes
    if not (came or left):
        return None
    fetches = stats.kv_fetches - earlier.kv_fetches
    waited = 1000 * (stats.kv_fetch_seconds - earlier.kv_fetch_seconds) / max(1, fetches)
    return (
        f"KV transfers: {format_bytes(came)} came, {format_bytes(left)} were fetched by others; "
        f"{fetches} prompts waited, {waited:.0f} ms on average"
    )


def _baseline(earlier: EngineStats | None, stats: EngineStats) -> EngineStats:
    """What the counters began from: at the first look, and with a restarted engine, from zero."""
    if earlier is None or stats.num_steps < earlier.num_steps:
        return EngineStats()
    return earlier


def _gpu(served: ServedModel) -> bool:
    ready = served.client.ready
    return ready is not None and ready.device != "cpu"
