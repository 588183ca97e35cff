"""Which steps are replayed, and when more of them can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from pagoda.planner.captured import CapturedSize
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.device import Device
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.head import OutputHead
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.steps.captured import Budget, CapturedSteps, model_pass
from pagoda.runtime.steps.graphs import GraphMaker
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import StepLimits, StepProgram

if TYPE_CHECKING:  # it needs Triton
    from pagoda.runtime.triton.tiles import TileTuning

CapturePasses = Callable[[Callable[..., CapturedSteps], int], CapturedSteps]
"""As `HeadDrafter.capture`."""


@dataclass(eq=False)
class Replays:
    """On a CPU one program computes every step; on a GPU graphs compute those of some sizes, and
    the passes of a draft head. All others run op by op."""

    model: Model
    cache: LayerCaches
    block_sizes: Sequence[int]
    has_states: bool
    limits: StepLimits
    """Those of any step."""
    device: Device
    captured_bytes: int
    """Most that graphs may take; 0 captures none."""
    captured_sizes: tuple[CapturedSize, ...]
    tiles: "TileTuning | None"
    """What measures how products are best cut, once all is captured."""
    has_adapters: bool = False
    kind: Callable[..., CapturedSteps] = CapturedSteps

    def __post_init__(self) -> None:
        self.program: StepProgram | CapturedSteps | None = None
        self.captured: list[CapturedSteps] = []
        """All that is captured as graphs: steps, and the passes of a draft head."""

    @torch.inference_mode()
    def record(self, head: OutputHead, capture_passes: CapturePasses | None) -> None:
        """Have steps that end in `head` replayed, and a draft head's passes with them."""
        make_graphs = self.device.graph_maker()
        if make_graphs is None:
            self.program = StepProgram.record(
                self.model,
                self.cache,
                self.block_sizes,
                self.limits,
                self.has_states,
                self.has_adapters,
            )
        elif self.captured_bytes and self.captured_sizes:
            self._make_captured(make_graphs, head, capture_passes)

    def _make_captured(
        self,
        make_graphs: Callable[[], GraphMaker],
        head: OutputHead,
        capture_passes: CapturePasses | None,
    ) -> None:
        sizes = self.captured_sizes
        most, rows = max(size.tokens for size in sizes), max(size.samples for size in sizes)
        make = partial(
            self.kind,
            cache=self.cache,
            block_sizes=self.block_sizes,
            sizes=sizes,
            limits=replace(self.limits, max_tokens=most, max_samples=rows),
            has_states=self.has_states,
            has_adapters=self.has_adapters,
            device=self.device.torch_device,
            make_graphs=make_graphs,
            free_memory=lambda: self.device.facts().free_memory,
            budget=Budget(self.captured_bytes),
        )
        self.program = make(model_pass(self.model, head))
        self.captured = [self.program]
        if capture_passes is not None:
            decodes = tuple(size for size in sizes if not size.prompts)
            self.captured.append(capture_passes(partial(make, sizes=decodes), most))

    def program_for(self, step: PreparedStep) -> StepProgram | CapturedSteps | None:
        """What computes it; None where it runs op by op."""
        program, arrays = self.program, step.arrays
        if program is None or arrays.media or step.needs & Needs.ALIGN:
            return None
        num_samples = len(step.places.hidden_rows)
        return program if program.fits(arrays.num_tokens, arrays.num_reqs, num_samples) else None

    def capture_usual(self) -> None:
        """Before the engine is ready."""
        for steps in self.captured:
            steps.capture_usual()

    def capture_needed(self) -> None:
        """Between steps."""
        any(steps.capture_needed() for steps in self.captured)  # one of them, at most

    def work_ahead(self) -> bool:
        """While no request runs: capture one more step, or measure where all are captured. False
        when nothing is left to do."""
        more = any(steps.capture_more() for steps in self.captured)
        if more or (self.tiles is not None and self.tiles.go_on()):
            return True
        tiles, self.tiles = self.tiles, None
        if tiles is None or not tiles.changed or not self.captured:
            return False
        self.drop()  # graphs hold the kernels that they were captured with
        return True

    def drop(self) -> None:
        """Before weights or caches move or go: forget what points to them."""
        for steps in self.captured:
            steps.drop()
        if self.captured:
            self.device.give_back()

    def drop_passes(self) -> None:
        """Forget those of a draft head for good."""
        for passes in self.captured[1:]:
            passes.drop()
        del self.captured[1:]
