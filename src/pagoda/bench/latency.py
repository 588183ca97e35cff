"""`bench latency`: how long one batch takes, from its prompts to its last token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagoda.config.option import Options, option
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.constraint import completion_constraint

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine

_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True)
class LatencyConfig(Options):
    """The batch, and how often it runs."""

    input_len: int = option(32, "Tokens per prompt.", bounds=(1, 10**9))
    output_len: int = option(128, "Tokens generated per prompt.", bounds=(1, 10**9))
    batch_size: int = option(8, "Prompts per batch.", bounds=(1, 10**6))
    num_iters_warmup: int = option(10, "Batches before the clock starts.", bounds=(0, 10**6))
    num_iters: int = option(30, "Batches that are timed.", bounds=(1, 10**6))
    json_schema: str | None = option(None, "JSON schema that every output is held to.")
    temperature: float = option(1.0, "Of sampling; 0 is greedy.", bounds=(0, 100))


def bench_latency(
    engine: "BenchEngine", config: LatencyConfig, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Seconds per batch under vLLM's JSON keys, and what steps spend outside their kernels; every
    batch has prompts of its own."""
    grammar = None
    if config.json_schema is not None:
        wanted = StructuredOutputsParams(json=config.json_schema)
        grammar = completion_constraint(wanted).grammar
    total = config.num_iters_warmup + config.num_iters
    seconds = []
    for done in range(total):
        if done == config.num_iters_warmup:
            before = engine.forward_passes()
        prompts = [engine.random_prompt(config.input_len) for _ in range(config.batch_size)]
        outputs = [config.output_len] * config.batch_size
        seconds.append(
            engine.run(prompts, outputs, temperature=config.temperature, grammar=grammar)
        )
        progress(done + 1, total)
    after = engine.forward_passes()
    steps = max(1, after.steps - before.steps)
    timed = seconds[config.num_iters_warmup :]
    outside = max(0.0, sum(timed) - (after.kernel_seconds - before.kernel_seconds))
    masks = after.mask_seconds - before.mask_seconds
    percentiles = np.percentile(timed, _PERCENTILES)
    return {
        "batch_size": config.batch_size,
        "input_len": config.input_len,
        "output_len": config.output_len,
        "output_throughput": config.batch_size * config.output_len / float(np.median(timed)),
        "avg_latency": float(np.mean(timed)),
        "latencies": timed,
        "percentiles": dict(zip(map(str, _PERCENTILES), map(float, percentiles), strict=True)),
        "outside_kernels_per_step": outside / steps,
        "outside_kernels_share": outside / sum(timed),
        "masks_per_step": masks / steps,
        "masks_share": masks / sum(timed),
        "ops": engine.op_times(),
    }


def latency_lines(result: dict[str, Any]) -> str:
    lines = [
        f"Batch of {result['batch_size']}: {result['input_len']} tokens in, "
        f"{result['output_len']} out",
        f"Avg latency: {result['avg_latency']:.4f} seconds",
    ]
    lines += [
        f"{percent}% percentile latency: {seconds:.4f} seconds"
        for percent, seconds in result["percentiles"].items()
    ]
    lines.append(f"Output: {result['output_throughput']:.1f} tokens/s, by the median")
    microseconds = 1e6 * result["outside_kernels_per_step"]
    share = result["outside_kernels_share"]
    lines.append(f"Outside kernels: {microseconds:.0f} us per step, {share:.1%} of the time")
    if result["masks_per_step"]:
        microseconds = 1e6 * result["masks_per_step"]
        share = result["masks_share"]
        lines.append(
            f"Masks of the schema: {microseconds:.0f} us per step, {share:.1%} of the time"
        )
    whole = sum(took for _, took in result["ops"].values())
    for name, (calls, took) in sorted(result["ops"].items(), key=lambda item: -item[1][1]):
        lines.append(f"{name:>16}: {1e6 * took:8.0f} us in {calls} calls, {took / whole:.1%}")
    return "\n".join(lines)
