"""Kernels of products compiled side by side, before the first steps would one behind the other.

A compiler's passes leave Python to other threads, and ptxas is a process of its own. Each product
is one that steps compute, on the model's own weights and zeros: Triton finds what to compile by
itself.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch

from pagoda.base.log import get_logger
from pagoda.base.machine import usable_threads
from pagoda.base.units import format_seconds
from pagoda.kernels import ops
from pagoda.layers.linear import Linear
from pagoda.layers.moe import MixtureOfExperts
from pagoda.models.base import Model as LayeredModel

if TYPE_CHECKING:
    from pagoda.runtime.device import Device
    from pagoda.runtime.model import Model

logger = get_logger(__name__)

Work = Callable[[], object]

_MOST_THREADS = 8
_TOKENS = (1, 16, 32, 64, 512, 2048)
"""From each of these on kernels are others; a step of fewer has those of the number before."""
_MOST_RESULTS = 1 << 25
"""Numbers that a product may give: several are in memory at once."""


def compile_ahead(model: "Model", device: "Device", most_tokens: int) -> None:
    """Compile for steps of up to `most_tokens`. What fails here fails again in a step, which says
    so."""
    work = list(products(model, device, most_tokens))
    threads = min(_MOST_THREADS, usable_threads(), len(work))
    if threads < 2:
        return
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads, "compile", initializer=device.use) as pool:
        failed = [error for error in pool.map(_tried, work) if error is not None]
    for error in failed:
        logger.debug("A product was not compiled ahead: %s", error)
    device.give_back()
    logger.info(
        "The kernels of %d products are there in %s, with %d threads.",
        len(work) - len(failed), format_seconds(time.perf_counter() - begun), threads,
    )  # fmt: skip


def products(model: "Model", device: "Device", most_tokens: int) -> Iterator[Work]:
    """Each once that layers of the model compute in other ways than the rest, numbers of tokens
    outermost."""
    if not isinstance(model, LayeredModel):
        return
    layers = {
        _likeness(layer): layer
        for layer in model.modules()
        if isinstance(layer, Linear | MixtureOfExperts) and _is_here(layer)
    }
    zeros = partial(torch.zeros, dtype=model.context.dtype, device=device.torch_device)
    for tokens in (count for count in _TOKENS if count <= most_tokens):
        for layer in layers.values():
            if isinstance(layer, MixtureOfExperts):
                if tokens * layer.spec.top_k * model.spec.hidden_size <= _MOST_RESULTS:
                    yield partial(_mix, layer, zeros, tokens, model.spec.hidden_size)
            elif tokens * sum(layer.sizes) <= _MOST_RESULTS:
                yield partial(_multiply, layer, zeros, tokens)


def _multiply(layer: Linear, zeros: Callable[..., torch.Tensor], tokens: int) -> None:
    layer.format.apply(zeros((tokens, layer.width)), layer.bias)


def _mix(
    layer: MixtureOfExperts, zeros: Callable[..., torch.Tensor], tokens: int, size: int
) -> None:
    x, top_k = zeros((tokens, size)), layer.spec.top_k
    logits = zeros((tokens, layer.spec.num_experts))
    routed = ops.route(logits, top_k, layer.spec.scoring, layer.spec.renormalize, None)
    layer.mix_by(ops.mix_experts, x, routed)


def _likeness(layer: Linear | MixtureOfExperts) -> object:
    """Layers with the same have the same kernels."""
    if isinstance(layer, MixtureOfExperts):
        parts = (layer.gate_up, layer.down)
        return (layer.spec, *((type(part.format), part.nbytes) for part in parts))
    return (type(layer.format), layer.sizes, layer.width, layer.bias is None, layer.nbytes)


def _is_here(layer: Linear | MixtureOfExperts) -> bool:
    """Not in the host's memory, from where layers pass through the same place."""
    return (layer.down if isinstance(layer, MixtureOfExperts) else layer).host is None


@torch.inference_mode()
def _tried(work: Work) -> Exception | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # compilers raise what their parts raise
        return error
    return None
