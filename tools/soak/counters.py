"""/metrics as plain figures."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def read(text: str) -> dict[str, float]:
    """Each sample's sum over its labels; ends of requests also by `{reason}`."""
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                continue
            sums[sample.name] += sample.value
            reason = sample.labels.get("finished_reason")
            if reason:
                sums[f"{sample.name}{{{reason}}}"] += sample.value
    return sums


def busy(values: dict[str, float]) -> str:
    """What still holds requests or blocks; empty when nothing does."""
    return ", ".join(f"{name} is {values[name]:g}" for name in _BUSY if values.get(name))
