"""Which experts are read from disk, layer by layer, on a CPU whose memory is too small for all; and
how fast that can be."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from pagoda.arch.spec import ModelSpec
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.base.words import say
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
    layers = say("{some} of {all} layers", some=plan.placement.experts, all=sparse)
    size = format_bytes(plan.placement.nbytes)
    why = say("{size}; memory is too small for all", size=size)
    reasons.append(Reason("experts_on_disk", layers, why))
    return plan, say("That is with all experts read from disk.")


def num_sparse(spec: ModelSpec) -> int:
    """Layers that have experts."""
    return sum(layer.experts is not None for layer in spec.layers)


def speed_in_words(plan: MemoryPlan, spec: ModelSpec, speed: float | None) -> str:
    """How fast a plan with experts on disk is, where that gives `speed` bytes per second and the
    system holds nothing of them; None: it is not known. Without the last full stop."""
    placement = plan.placement
    size = say(
        "Memory is too small for all experts: those of {some} of {all} layers, {size}, are read "
        "from disk, {token} for a token of one reply and all for every {chunk} tokens of a prompt",
        some=placement.experts,
        all=num_sparse(spec),
        size=format_bytes(placement.nbytes),
        token=format_bytes(placement.token_bytes),
        chunk=plan.max_chunk,
    )
    if speed is None:
        return say("{size}. How fast the disk reads is not known", size=size)
    decode, prompt = speed / placement.token_bytes, speed / placement.nbytes * plan.max_chunk
    return say(
        "{size}. The disk reads {speed} a second: that allows {decode} tokens/s for one reply and "
        "{prompt} for a prompt, more where the system still has what is read",
        size=size,
        speed=format_bytes(speed),
        decode=_rate(decode),
        prompt=_rate(prompt),
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _refusal(config: EngineConfig, facts: DeviceFacts) -> str:
    """Why experts cannot be on disk; empty where they can."""
    if config.parallel.num_ranks > 1:
        return say(
            "One process alone could read experts from disk: leave out --tensor-parallel-size and "
            "--pipeline-parallel-size."
        )
    if not facts.packed_storages:
        return say(
            "The native kernels alone could read experts from disk, and they are not in use here."
        )
    return ""
