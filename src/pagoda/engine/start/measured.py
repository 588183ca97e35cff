"""A KV pool that fits what is really free on a GPU, once the weights are there and the largest
step has been measured. What a step takes is kept in the cache folder, for the next start."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import write_whole
from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.planner.memory.plan import PROCESS_BYTES
from pagoda.planner.resolve import Resolution, refit
from pagoda.planner.resolved import ResolvedConfig
from pagoda.version import __version__

if TYPE_CHECKING:
    from pagoda.runtime.device import Device

log = get_logger(__name__)

# Of what is free on a GPU so much is left to others, and to what nobody foresaw.
_RESERVE = 256 << 20
_MOST_ENTRIES = 256


class Room(NamedTuple):
    """What one device has left once the weights are there."""

    peak: int | None
    """Bytes that the largest step takes; None where it was not measured."""
    usable: int
    """Bytes that may yet be taken."""


Measure = Callable[[Callable[[], Room], bool], list[Room]]
"""Gives the room of all devices that share the model. Takes what measures this one's, and whether
that computes a step."""


def alone(measure: Callable[[], Room], computes: bool) -> list[Room]:
    """A `Measure` of one device."""
    return [measure()]


def measures_steps(config: EngineConfig, resolution: Resolution, device: "Device") -> bool:
    """Whether the pool's size depends on what a step takes."""
    cache = config.cache
    chosen = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
    return device.name != "cpu" and bool(resolution.plan.groups) and not chosen


def fit_to_device(
    config: EngineConfig,
    spec: ModelSpec,
    resolution: Resolution,
    device: "Device",
    largest_step: Callable[..., None],
    measure: Measure = alone,
) -> Resolution:
    """`resolution` of `config` with the context and the pool that fit now, on each of the devices
    that share the model; CapacityError where none does. `largest_step` takes the arguments of
    `runtime.profile` behind the model."""
    path = _path(spec, resolution, device)
    known = _read(path)
    step = None
    if known is None:
        groups = list(resolution.plan.groups)
        step = step_of(largest_step, groups, device, resolution.config)
    share = config.cache.gpu_memory_utilization
    found = measure(partial(room_of, device, share, step), step is not None)
    peaks = [room.peak for room in found if room.peak is not None]
    if known is None and len(peaks) < len(found):
        return resolution
    peak = known or max(peaks)
    if known is None:
        _write(path, peak)
    usable = min(room.usable for room in found)
    log.info("The largest step takes %s; %s are left.", format_bytes(peak), format_bytes(usable))
    return refit(config, spec, resolution, activations=peak, usable=usable)


def step_of(
    largest_step: Callable[..., None],
    groups: list[GroupSpec],
    device: "Device",
    config: ResolvedConfig,
) -> Callable[[], None]:
    """The largest step of `config`."""
    return partial(
        largest_step,
        groups,
        device,
        config.scheduler.max_num_batched_tokens,
        config.scheduler.max_num_seqs,
        config.max_num_samples,
        config.model.max_model_len,
    )


def room_of(device: "Device", share: float, step: Callable[[], None] | None) -> Room:
    """What is left of this `share` of the device, and what `step` takes."""
    peak = None if step is None else device.peak_of(step)
    device.give_back()
    facts = device.facts()
    held = device.memory_used() + PROCESS_BYTES[facts.device]
    usable = min(int(facts.total_memory * share) - held, facts.free_memory - _RESERVE)
    return Room(peak, usable)


def _path(spec: ModelSpec, resolution: Resolution, device: "Device") -> Path:
    """Named by all that a step's memory depends on."""
    config, facts = resolution.config, device.facts()
    depends_on: list[Any] = [
        repr(spec), resolution.plan.weights, resolution.packed, repr(resolution.attention),
        config.model.dtype, config.model.quantization, config.cache.kv_cache_dtype,
        config.cache.block_size, config.model.max_model_len, config.max_num_samples,
        config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs,
        config.parallel.tensor_parallel_size, resolution.cuts,
        facts.name, facts.total_memory, facts.capability, __version__, _version("torch"),
        _version("triton"),
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:32]
    return env.cache_dir() / "steps" / f"{name}.json"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read(path: Path) -> int | None:
    """None where there is nothing, or nothing that makes sense."""
    try:
        peak = json.loads(path.read_text())["peak_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return peak if isinstance(peak, int) and peak > 0 else None


def _write(path: Path, peak: int) -> None:
    """A folder that cannot be written costs the next start a step, and nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[
            : -_MOST_ENTRIES + 1
        ]:
            old.unlink(missing_ok=True)
        write_whole(path, json.dumps({"peak_bytes": peak}))
    except OSError as error:
        log.info("The measured step could not be kept: %s.", error)
