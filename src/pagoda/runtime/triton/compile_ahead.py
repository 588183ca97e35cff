"""The kernels of a model's steps, compiled side by side before its first step would compile one
behind the other.

A compiler's passes leave Python to other threads, and ptxas is a process of its own.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pagoda.base.log import get_logger
from pagoda.base.machine import usable_threads
from pagoda.base.units import format_seconds
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.kernels.triton.target import assuming, capability_of, processors_of
from pagoda.models.base import Model as LayeredModel
from pagoda.runtime.steps.program import StepLimits
from pagoda.runtime.triton.needed import Launch, needed
from pagoda.runtime.triton.weightless import weightless

if TYPE_CHECKING:
    from pagoda.runtime.device import Device
    from pagoda.runtime.model import Model

logger = get_logger(__name__)

_MOST_THREADS = 8


def compile_ahead(
    model: "Model", device: "Device", groups: Sequence[GroupSpec], limits: StepLimits
) -> None:
    """Compile what steps within `limits` launch, of a model with these groups of caches. What fails
    here fails again in a step, which says so."""
    threads = min(_MOST_THREADS, usable_threads())
    if threads < 2 or not isinstance(model, LayeredModel):
        return
    begun = time.perf_counter()
    work = _found(model, device, groups, limits)
    with ThreadPoolExecutor(threads, "compile", initializer=device.use) as pool:
        failed = [error for error in pool.map(_tried, work) if error is not None]
    for error in failed:
        logger.debug("A kernel was not compiled ahead: %s", error)
    logger.info(
        "%d kernels of this model's steps are there in %s, with %d threads.",
        len(work) - len(failed), format_seconds(time.perf_counter() - begun), threads,
    )  # fmt: skip


def _found(
    model: LayeredModel, device: "Device", groups: Sequence[GroupSpec], limits: StepLimits
) -> list[Launch]:
    place = device.torch_device
    try:
        with assuming(capability_of(place), processors_of(place)):
            return needed(weightless(model), groups, limits)
    except Exception as error:  # noqa: BLE001  # whatever it is, steps compile by themselves
        logger.info("Kernels are compiled by the first steps: %s", error)
        return []


def _tried(launch: Launch) -> Exception | None:
    try:
        _ = launch.compile().run  # loads it, and with Triton 3.6 compiles what launches it
    except Exception as error:  # noqa: BLE001  # compilers raise what their parts raise
        return error
    return None
