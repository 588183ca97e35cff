"""Where the memory goes when vLLM serves a model, by version."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from pagoda.arch.spec import ModelSpec
from pagoda.base.units import format_bytes
from pagoda.planner.estimate import Estimate, Row
from pagoda.planner.vllm.activations import activation_peak, graph_memory
from pagoda.planner.vllm.cache import Pool, pool
from pagoda.planner.vllm.setup import Run, VllmSetup, resolved, stage_layers
from pagoda.planner.vllm.weights import knows_towers, stage_weights, storage
from pagoda.weights.checkpoint import TensorInfo

_GIB = 1 << 30
# CUDA's context and libraries of one process, outside of what vLLM counts: what a start-up with
# 2.36 GiB of headroom and 1.92 GiB of graphs (0.11, 4x RTX 3090) left for them bounds it.
_CONTEXT = round(0.44 * _GIB)


@dataclass(frozen=True)
class VllmPlan:
    """One GPU of the pipeline stage with the fewest blocks for KV."""

    run: Run
    weights: Estimate
    activations: Estimate
    non_torch: Estimate
    graphs: Estimate
    pool: Pool | None
    """As large as the likely memory gives; None for a model that keeps no KV."""
    pool_range: tuple[Pool, Pool] | None
    """With the least and the most memory."""
    notes: tuple[str, ...]

    @property
    def requested(self) -> int:
        """Bytes that --gpu-memory-utilization grants."""
        return ceil(self.run.total * self.run.utilization)

    @property
    def available(self) -> Estimate:
        """For the KV pool; below 0 the model does not start."""
        if self.run.pool_bytes is not None:
            return Estimate.exactly(self.run.pool_bytes, "as asked for")
        parts = self._counted
        return Estimate(
            self.requested - self.weights.high - sum(part.high for part in parts),
            self.requested - self.weights.likely - sum(part.likely for part in parts),
            self.requested - self.weights.low - sum(part.low for part in parts),
        )

    @property
    def _counted(self) -> tuple[Estimate, ...]:
        """What a start subtracts from its grant, the weights apart."""
        graphs = self.graphs if self.run.version.subtracts_graphs else _NOTHING
        return (self.activations, self.non_torch, graphs)

    @property
    def beyond(self) -> int:
        """Bytes that the utilization has to leave to what is not counted, at most: CUDA's context,
        and graphs that are captured on top."""
        return _CONTEXT + (0 if self.run.version.subtracts_graphs else self.graphs.high)

    def utilization_for(self, pool_bytes: int) -> float:
        """The version's default of --gpu-memory-utilization where that gives the pool so many bytes
        and leaves `beyond`; else the nearest that does, in hundredths, or the default again."""
        total, default = self.run.total, self.run.version.utilization
        counted = self.weights.likely + sum(part.likely for part in self._counted)
        least = ceil(100 * (counted + pool_bytes) / total)
        most = 100 * (total - self.run.used - self.beyond) // total
        if least > max(most, round(100 * default)):
            return default
        # A hundredth more, if it is there: the likely bytes are not certain.
        return max(min(most, max(least + 1, round(100 * default))), least) / 100

    @property
    def fits(self) -> bool:
        """vLLM starts: one request of the whole context has room."""
        if self._missing > 0:
            return False
        if self.pool is None:
            return self.available.likely >= 0
        return self.pool.concurrency >= 1

    @property
    def _missing(self) -> int:
        """Bytes by which what is granted, or a pool of the size that was asked for with the rest,
        is more than the GPU has free."""
        left = self.run.total - self.run.used
        if self.run.pool_bytes is None:
            return self.requested - left
        parts = (self.weights, self.activations, self.non_torch, self.graphs)
        taken = sum(part.likely for part in parts) + _CONTEXT
        return taken + self.run.pool_bytes - left

    @property
    def problem(self) -> str:
        """Why vLLM will not start; empty where it will."""
        return "" if self.fits else _refusal(self)

    def rows(self) -> list[Row]:
        found = [
            Row("weights", self.weights),
            Row("activations", self.activations),
            Row("non-torch", self.non_torch),
            Row("CUDA graphs", self.graphs),
        ]
        if self.pool is not None:
            room = self.available
            detail = (
                f"{self.pool.num_blocks:,} blocks of {self.pool.block} tokens, "
                f"{format_bytes(self.pool.block_bytes)} each"
            )
            least, likely, most = (max(0, x) for x in (room.low, room.likely, room.high))
            found.append(Row("KV pool", Estimate(least, likely, most, detail)))
        return found


_NOTHING = Estimate(0, 0, 0)
_NO_TOWER = (
    "vLLM also loads a vision tower, whose size neither headers nor config.json said; it is not "
    "counted."
)


def plan_vllm(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    setup: VllmSetup,
    config: Mapping[str, Any] | None = None,
) -> VllmPlan:
    """`tensors`: the checkpoint's headers, may be empty; `config`: config.json, which also knows
    of towers and drafting layers that the spec leaves out.

    Raises ConfigError for flags that vLLM would refuse, and for layers that this version cannot
    put into one pool.
    """
    run = resolved(setup, spec, config)
    stages = stage_layers(len(spec.layers), run.stages)
    stored = storage(spec, tensors, run)
    peaks = [activation_peak(spec, run, held, stored) for held in stages]
    weights = [stage_weights(spec, tensors, run, held) for held in stages]
    graphs = graph_memory(spec, run)
    low, likely, high = (round(gib * _GIB) for gib in run.version.non_torch)
    non_torch = Estimate(low, likely, high, f"kernels and communication, of {run.version.name}")
    plans = [
        VllmPlan(run, held, peak, non_torch, graphs, None, None, ())
        for held, peak in zip(weights, peaks, strict=True)
    ]
    pools = [
        pool(spec, run, [getattr(plan.available, name) for plan in plans], stages)
        for name in ("low", "likely", "high")
    ]
    least, middle, most = pools
    tightest = plans[0 if middle is None else middle.stage]
    notes = [] if knows_towers(spec, tensors) else [_NO_TOWER]
    found = VllmPlan(
        run, tightest.weights, tightest.activations, non_torch, graphs, middle,
        None if least is None or most is None else (least, most), (),
    )  # fmt: skip
    return replace(found, notes=(*notes, *_notes(found)))


def _notes(plan: VllmPlan) -> list[str]:
    run, notes = plan.run, []
    if run.drafted and not run.drafters:
        notes.append("The model has no MTP layer; a draft model of its own is not counted.")
    if plan.weights.low != plan.weights.high:
        notes.append(
            "The weights are guessed: 4-bit checkpoints differ in what they leave unquantized. "
            "Their headers say it exactly."
        )
    headroom = run.total - plan.requested
    beyond = 0 if run.version.subtracts_graphs else plan.graphs.high
    if run.pool_bytes is None and headroom < plan.beyond:
        graphs = f", and CUDA graphs up to {format_bytes(beyond)}" if beyond else ""
        notes.append(
            f"--gpu-memory-utilization {run.utilization:g} leaves {format_bytes(headroom)} to what "
            f"vLLM {run.version.name} does not count: CUDA itself, up to {format_bytes(_CONTEXT)}"
            f"{graphs}. Lower it if the start runs out of memory."
        )
    pool = plan.pool
    if pool is not None and pool.tokens != pool.context_tokens and len(pool.groups) > 1:
        notes.append(
            f"The log will say {pool.tokens:,} tokens, which counts all layers alike; in requests "
            f"of {run.length:,} it is {pool.context_tokens:,}."
        )
    return notes


def _refusal(plan: VllmPlan) -> str:
    run, available, pool = plan.run, plan.available.likely, plan.pool
    missing = plan._missing
    if missing > 0 and run.pool_bytes is None:
        return (
            f"vLLM will not start: --gpu-memory-utilization {run.utilization:g} grants "
            f"{format_bytes(plan.requested)}, and {format_bytes(run.total - run.used)} are free on "
            "the GPU. Lower it, or end what uses the GPU."
        )
    if missing > 0:
        return (
            f"vLLM will not start: --kv-cache-memory-bytes {run.pool_bytes} is "
            f"{format_bytes(missing)} more than the GPU has beside the rest."
        )
    if available <= 0 or pool is None:
        return (
            f"vLLM will not start: of {format_bytes(plan.requested)} granted, weights and a step's "
            f"temporaries leave {format_bytes(available)} for KV. Take more GPUs, a smaller "
            "quantization, or fewer --max-num-seqs."
        )
    longest = pool.largest_context
    advice = f"--max-model-len {longest} fits" if longest else "no context fits"
    return (
        f"vLLM will not start: {format_bytes(available)} are left for KV, and one request of "
        f"{run.length:,} tokens needs "
        f"{format_bytes(pool.request_blocks(run.length) * pool.block_bytes)}; {advice}."
    )
