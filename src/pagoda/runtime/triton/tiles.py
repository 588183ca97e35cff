"""How the experts' products are cut into tiles on the GPU that is there: measured once.

Linear layers keep the defaults: theirs are few shapes, which the defaults were made for, while
how many tokens an expert has differs by model.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from triton.errors import TritonError

from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.kernels.ops import Routed
from pagoda.kernels.triton.products import experts, forms
from pagoda.kernels.triton.products.gemm import has_dot
from pagoda.kernels.triton.products.routing import group_by_expert
from pagoda.kernels.triton.target import capability
from pagoda.layers.moe import MixtureOfExperts
from pagoda.models.base import Model as LayeredModel
from pagoda.runtime.triton.kernel_notes import KernelNotes, notes_of

if TYPE_CHECKING:
    from pagoda.runtime.device import Device
    from pagoda.runtime.model import Model

logger = get_logger(__name__)

_KEY = "tiles"
# Of one start. Nearly all of it goes into compiling: 5 s for a form of MXFP4 and sm_90 on a slow
# core, and a model has about 80 forms to try.
_SECONDS = 240.0
# Prompts first, then decode steps of some requests.
_CLASSES = (128, 16, 64, 32)
_REPEATS, _CALLS = 3, 5


class TileTuning:
    """Measures one form after the other, with the model's own matrices and random inputs.

    Takes what an earlier process measured, at once. `most_tokens` are those of a step.
    """

    def __init__(
        self,
        layers: Sequence[MixtureOfExperts],
        x: torch.Tensor,
        most_tokens: int,
        synchronize: Callable[[], None],
        notes: KernelNotes,
    ):
        """Their inputs are like `x` [any, hidden]."""
        self._layers = list({_shapes(layer): layer for layer in layers}.values())
        self._x = x
        self._most_tokens = most_tokens
        self._synchronize = synchronize
        self._notes = notes
        self._random = torch.Generator(x.device).manual_seed(0)
        self.changed = False
        """A product is cut in another way than before."""
        self._measured = 0
        self._spent = 0.0
        known = forms.take(notes.read(_KEY))
        self._work = self._all_layers() if has_dot(x) else None
        if known:
            logger.info("The tiles of %d products of experts are those of %s.", known, notes.path)

    @property
    def rows(self) -> list[list[bool | str | int]]:
        """All that is known of this device, for processes that compute on another of its kind."""
        return forms.measured()

    @torch.inference_mode()
    def go_on(self) -> bool:
        """Measure one form; False when that was the last one, or time is over.

        It takes as long as the form's compilation: seconds. A request that comes meanwhile waits.
        """
        if self._work is None:
            return False
        begun, why = time.perf_counter(), ""
        try:
            done = next(self._work, None) is None
        except (RuntimeError, TritonError) as error:
            done, why = True, f"; the others are not: {str(error).splitlines()[0]}"
        self._spent += time.perf_counter() - begun
        if not done and self._spent > _SECONDS:
            done, why = True, "; the next start goes on"
        if done:
            self._finish(why)
        return not done

    def _finish(self, why: str) -> None:
        self._work = None
        if self._measured or why:
            logger.info(
                "The tiles of %d products of experts are measured, in %s, and kept in %s%s.",
                self._measured, format_seconds(self._spent), self._notes.path, why,
            )  # fmt: skip

    def _all_layers(self) -> Iterator[forms.Form]:
        for tokens in _CLASSES:
            for layer in self._layers:
                yield from self._layer(layer, tokens)

    def _layer(self, layer: MixtureOfExperts, tokens: int) -> Iterator[forms.Form]:
        """Measure a layer's products for experts of so many tokens each."""
        for product in self._products(layer, tokens):
            if product.case.tokens != tokens or forms.is_measured(product.case):
                continue
            target = capability(self._x)
            before = forms.form(product.case, target)
            yield from forms.tune(product.case, target, product.compute, self._seconds)
            self._measured += 1
            self.changed |= forms.form(product.case, target) != before
            # Each at once: a process may end at any time.
            self._notes.write(_KEY, forms.measured(self._notes.read(_KEY)))

    def _products(self, layer: MixtureOfExperts, tokens: int) -> Sequence[experts.Product]:
        """For steps whose experts have three quarters of so many tokens each: forms serve half
        of them, too."""
        held, top_k = layer.held, layer.spec.top_k
        count = held.stop - held.start
        top_k = min(top_k, count)
        steps = min(self._most_tokens, max(1, tokens * 3 // 4 * count // top_k))
        like = self._x.new_empty
        x = like((steps, self._x.shape[1])).normal_(generator=self._random)
        chance = like((steps, count), dtype=torch.float32).uniform_(generator=self._random)
        ids = held.start + chance.topk(top_k).indices
        weights = torch.full_like(ids, 1 / top_k, dtype=torch.float32)
        routed = Routed(ids, weights, group_by_expert(ids, layer.spec.num_experts))
        return layer.mix_by(experts.products_of_tiles, x, routed)

    def _seconds(self, work: Callable[[], torch.Tensor]) -> float:
        """The least seconds of a call among some that are queued at once."""
        times = []
        for _ in range(_REPEATS):
            self._synchronize()
            begun = time.perf_counter()
            for _ in range(_CALLS):
                work()
            self._synchronize()
            times.append(time.perf_counter() - begun)
        return min(times)


def tile_tuning(model: "Model", device: "Device", most_tokens: int) -> TileTuning | None:
    """None for a model without experts."""
    if not isinstance(model, LayeredModel):
        return None
    layers = [layer for layer in model.modules() if isinstance(layer, MixtureOfExperts)]
    if not layers:
        return None
    x = torch.empty(
        (0, model.spec.hidden_size), dtype=model.context.dtype, device=device.torch_device
    )
    notes = notes_of(device.facts().name)
    return TileTuning(layers, x, most_tokens, device.synchronize, notes)


def _shapes(layer: MixtureOfExperts) -> object:
    matrices = (layer.gate_up, layer.down)
    return experts.shapes(*(each.format.operand(each.bias) for each in matrices))
