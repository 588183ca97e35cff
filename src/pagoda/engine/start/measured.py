"""A KV pool that fits what is really free on a GPU, once the weights are there and the largest
step has been measured. What a step takes is kept in the cache folder, for the next start."""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import write_whole
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.plan import PROCESS_BYTES
from pagoda.planner.resolve import Resolution, refit
from pagoda.version import __version__

if TYPE_CHECKING:
    from pagoda.runtime.device import Device

log = get_logger(__name__)

# Of what is free on a GPU so much is left to others, and to what nobody foresaw.
_RESERVE = 256 << 20
_MOST_ENTRIES = 256


def measures_steps(config: EngineConfig, resolution: Resolution, device: "Device") -> bool:
    """Whether the pool's size depends on what a step takes. (Ranks have to agree on one, and keep
    the one that was predicted.)"""
    cache = config.cache
    if config.parallel.tensor_parallel_size > 1:
        return False
    chosen = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
    return device.name != "cpu" and bool(resolution.plan.groups) and not chosen


def fit_to_device(
    config: EngineConfig,
    spec: ModelSpec,
    resolution: Resolution,
    device: "Device",
    largest_step: Callable[..., None],
) -> Resolution:
    """`resolution` of `config` with the context and the pool that fit now; CapacityError where
    none does. `largest_step` takes the arguments of `runtime.profile` behind the model."""
    path = _path(spec, resolution, device)
    peak = _read(path)
    if peak is None:
        scheduler = resolution.config.scheduler
        peak = device.peak_of(
            lambda: largest_step(
                list(resolution.plan.groups),
                device,
                scheduler.max_num_batched_tokens,
                scheduler.max_num_seqs,
                resolution.config.max_num_samples,
                resolution.config.model.max_model_len,
            )
        )
        if peak is None:
            return resolution
        _write(path, peak)
    device.give_back()
    facts = device.facts()
    held = device.memory_used() + PROCESS_BYTES[facts.device]
    share = int(facts.total_memory * config.cache.gpu_memory_utilization)
    usable = min(share - held, facts.free_memory - _RESERVE)
    log.info(
        "The largest step takes %s; %s are free on %s.",
        format_bytes(peak), format_bytes(facts.free_memory), facts.name or device.name,
    )  # fmt: skip
    return refit(config, spec, resolution, activations=peak, usable=usable)


def _path(spec: ModelSpec, resolution: Resolution, device: "Device") -> Path:
    """Named by all that a step's memory depends on."""
    config, facts = resolution.config, device.facts()
    depends_on: list[Any] = [
        repr(spec), resolution.plan.weights, resolution.packed, repr(resolution.attention),
        config.model.dtype, config.model.quantization, config.cache.kv_cache_dtype,
        config.cache.block_size, config.model.max_model_len, config.max_num_samples,
        config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs,
        config.parallel.tensor_parallel_size,
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
