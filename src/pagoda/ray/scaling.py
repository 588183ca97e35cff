"""How many replicas a deployment needs, from the metrics of its engines."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

NUM_REQUESTS, KV_USAGE = "num_requests", "kv_cache_usage"
# A replica whose blocks are used beyond this begins to preempt, or to forget what it could reuse.
_FULL = 0.8


def replicas_for_load(ctx: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """A policy of `autoscaling_config`: as many replicas as hold the requests that run and wait in
    engines at `target_ongoing_requests` each, and their KV caches at four fifths. Ray applies the
    limits and delays of the config."""
    metrics = ctx.aggregated_metrics or {}
    requests = sum(metrics.get(NUM_REQUESTS, {}).values())
    # What waits at proxies no engine has seen yet.
    requests = max(requests, ctx.total_num_requests)
    target = ctx.config.get_target_ongoing_requests() if ctx.config else 1.0
    by_requests = math.ceil(requests / target)
    by_kv = math.ceil(sum(metrics.get(KV_USAGE, {}).values()) / _FULL)
    return max(by_requests, by_kv), {}
