"""Which experts are read from disk, layer by layer, on a CPU whose memory is too small for all; and
how fast that can be."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from pagoda.arch.spec import ModelSpec
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.placement import spread
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.pool import has_room, wanted_contexts
from pagoda.planner.memory.weights import HeldWeight
from pagoda.planner.reason import Reason


def resolve_streaming(
    config: EngineConfig,
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    plan: MemoryPlan,
    facts: DeviceFacts,
    reasons: list[Reason],
) -> tuple[MemoryPlan, str]:
    """`plan` with the experts of as few layers on disk as makes the rest fit a CPU's memory; and
    what is to be said of experts where nothing does."""
    least, wanted = wanted_contexts(config, spec)
    sparse = num_sparse(spec)
    if facts.device != "cpu" or not sparse or has_room(config, plan, facts, least):
        return plan, ""
    if refusal := _refusal(config, facts):
        return plan, refusal
    counts = range(1, sparse + 1)

    def streamed(count: int) -> MemoryPlan:
        placement = spread(spec, held, count)
        return replace(plan, weights=plan.weights - placement.nbytes, placement=placement)

    enough = bisect_left(
        counts, True, key=lambda count: has_room(config, streamed(count), facts, wanted)
    )
    plan = streamed(min(1 + enough, sparse))
    layers = f"{plan.placement.experts} of {sparse} layers"
    why = f"{format_bytes(plan.placement.nbytes)}; memory is too small for all"
    reasons.append(Reason("experts_on_disk", layers, why))
    return plan, "That is with all experts read from disk."


def num_sparse(spec: ModelSpec) -> int:
    """Layers that have experts."""
    return sum(layer.experts is not None for layer in spec.layers)


def speed_in_words(plan: MemoryPlan, spec: ModelSpec, speed: float | None) -> str:
    """How fast a plan with experts on disk is, where that gives `speed` bytes per second and the
    system holds nothing of them; None: it is not known."""
    placement = plan.placement
    told = (
        f"Memory is too small for all experts: those of {placement.experts} of {num_sparse(spec)} "
        f"layers, {format_bytes(placement.nbytes)}, are read from disk, "
        f"{format_bytes(placement.token_bytes)} for a token of one reply and all for every "
        f"{plan.max_chunk} tokens of a prompt"
    )
    if speed is None:
        return f"{told}. How fast the disk reads is not known."
    decode, prompt = speed / placement.token_bytes, speed / placement.nbytes * plan.max_chunk
    return (
        f"{told}. The disk reads {format_bytes(speed)} a second: that allows {_rate(decode)} "
        f"tokens/s for one reply and {_rate(prompt)} for a prompt, more where the system still has "
        "what is read."
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _refusal(config: EngineConfig, facts: DeviceFacts) -> str:
    """Why experts cannot be on disk; empty where they can."""
    if config.parallel.num_ranks > 1:
        return (
            "One process alone could read experts from disk: leave out --tensor-parallel-size and "
            "--pipeline-parallel-size."
        )
    if not facts.packed_storages:
        return (
            "The native kernels alone could read experts from disk, and they are not in use here."
        )
    return ""
