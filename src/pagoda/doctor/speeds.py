"""How fast a resolved plan runs on some hardware."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.arch.spec import ModelSpec
from pagoda.core.kvcache.spec import GroupSpec, kv_groups
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.subject import Subject
from pagoda.planner.devices.gpu_speed import gpu_speeds
from pagoda.planner.devices.roofline import GpuPart, Step, decode_step
from pagoda.planner.devices.speed import (
    DeviceSpeed,
    SpeedEstimate,
    as_measured,
    between,
    estimate_speed,
)
from pagoda.planner.memory.weights import HeldWeight, held_weights
from pagoda.planner.parallel import rank_spec
from pagoda.planner.resolve import Resolution


@dataclass(frozen=True)
class Speeds:
    one: SpeedEstimate
    """A request behind `context` tokens."""
    empty: SpeedEstimate
    """A request without a context."""
    context: int
    together: SpeedEstimate | None = None
    """All of `requests`, each behind so many tokens; None for one."""
    together_empty: SpeedEstimate | None = None
    """All of `requests` without a context; None for one."""
    requests: int = 1
    step: Step | None = None
    """That of all `requests`, by operation; None where the device is no GPU."""


def speeds_of(
    subject: Subject,
    resolution: Resolution,
    hardware: Hardware,
    measured: DeviceSpeed | None,
    context: int,
    requests: int = 1,
) -> Speeds | None:
    """None for what writes no text, and where nothing is known of the device, or of processes that
    share a CPU."""
    spec, ranks = subject.spec, resolution.config.parallel.tensor_parallel_size
    if not spec.writes_text or spec.encoder is not None:
        return None
    plan = resolution.plan
    # The stages of a pipeline take turns with a request: together they are the whole model.
    own, held = rank_spec(spec, ranks), held_by(subject, resolution, hardware)
    groups = _groups(own, resolution)
    devices = device_speeds(subject, resolution, hardware, measured)

    def estimate(tokens: int, count: int = 1) -> SpeedEstimate | None:
        each = [
            estimate_speed(own, held, groups, device, tokens, plan.placement.params, count)
            for device in devices
        ]
        found = [estimate for estimate in each if estimate is not None]
        if not found:
            return None
        return between(*found) if len(found) == 2 else as_measured(found[0])

    one, empty = estimate(context), estimate(0)
    if one is None or empty is None:
        return None
    together, together_empty = None, None
    if requests > 1:
        together, together_empty = estimate(context, requests), estimate(0, requests)
    part = gpu_part(subject, resolution, hardware)
    step = None if part is None else decode_step(part, context, requests)
    return Speeds(one, empty, context, together, together_empty, requests, step)


def gpu_part(subject: Subject, resolution: Resolution, hardware: Hardware) -> GpuPart | None:
    """What one GPU has of a model; None where the device is none that a table has."""
    if hardware.gpu is None:
        return None
    plan, ranks = resolution.plan, resolution.config.parallel.tensor_parallel_size
    own = rank_spec(subject.spec, ranks)
    return GpuPart(
        hardware.gpu,
        ranks,
        plan.captured > 0,
        own,
        held_by(subject, resolution, hardware),
        _groups(own, resolution),
        frozenset(plan.placement.params),
    )


def _groups(own: ModelSpec, resolution: Resolution) -> Sequence[GroupSpec]:
    """What one device keeps of tokens; all stages of a pipeline together, as one."""
    if not resolution.cuts:
        return resolution.plan.groups
    layout, kv_dtype = resolution.attention.layout, resolution.config.cache.kv_cache_dtype
    return kv_groups(own, layout, kv_dtype)


def device_speeds(
    subject: Subject, resolution: Resolution, hardware: Hardware, measured: DeviceSpeed | None
) -> tuple[DeviceSpeed, ...]:
    """The slowest and the fastest that a GPU may be with the model, a CPU as it was measured;
    empty where nothing is known."""
    ranks = resolution.config.parallel.tensor_parallel_size
    if hardware.gpu is not None:
        own, captured = rank_spec(subject.spec, ranks), resolution.plan.captured > 0
        return gpu_speeds(hardware.gpu, own, ranks, captured=captured)
    shared = resolution.config.parallel.num_devices
    if measured is None or hardware.facts.device != "cpu" or shared > 1:
        return ()
    return () if resolution.plan.on_disk and measured.disk is None else (measured,)


def held_by(subject: Subject, resolution: Resolution, hardware: Hardware) -> list[HeldWeight]:
    """The weights of one device as `resolution` holds them."""
    config = resolution.config
    packed = hardware.facts.packed_storages if resolution.packed else frozenset[str]()
    tensors = subject.rounded(config.model.quantization)
    size = config.parallel.tensor_parallel_size
    return held_weights(subject.spec, tensors, config.model.dtype, packed, size)


def draft_model_held(
    subject: Subject, resolution: Resolution, hardware: Hardware
) -> list[HeldWeight]:
    """The weights of its draft model, as the file has them; none where it has no such."""
    draft = subject.draft
    if draft is None:
        return []
    packed = hardware.facts.packed_storages if resolution.packed else frozenset[str]()
    return held_weights(draft.spec, draft.tensors, resolution.config.model.dtype, packed)
