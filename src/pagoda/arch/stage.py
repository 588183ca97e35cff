"""A model's part in a pipeline: layers that follow each other, and what stands at either end."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.arch.spec import ModelSpec

# What is computed before the first layer; all else that is no layer's follows the last one.
_BEFORE = (
    "embed.", "positions.", "types.", "embed_norm.", "layer_inputs.", "altup.expand.", "vision.",
    "audio.",
)  # fmt: skip


@dataclass(frozen=True)
class StageSpec:
    """Which part of a model it is."""

    index: int
    cuts: tuple[int, ...]
    """The first layer of each stage, and the number of all layers."""
    whole: "ModelSpec"

    @property
    def first(self) -> int:
        """Its first layer, as the whole model counts them."""
        return self.cuts[self.index]

    @property
    def num_layers(self) -> int:
        return self.cuts[self.index + 1] - self.first

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == len(self.cuts) - 2

    def own(self, param: str) -> str | None:
        """What a parameter of the whole model is called in this stage; None where it has none."""
        if param.startswith("layers."):
            _, layer, rest = param.split(".", 2)
            index = int(layer) - self.first
            return f"layers.{index}.{rest}" if 0 <= index < self.num_layers else None
        before = param.startswith(_BEFORE)
        if self.is_first and before:
            return param
        return param if self.is_last and (not before or self._is_head(param)) else None

    def own_layers(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Those of some layers of the whole model that are here, as this stage counts them."""
        own = (layer - self.first for layer in layers)
        return tuple(layer for layer in own if 0 <= layer < self.num_layers)

    def most(self, layers: tuple[int, ...]) -> int:
        """How many of some layers of the whole model the stage has that has most of them."""
        spans = zip(self.cuts, self.cuts[1:], strict=False)
        return max(sum(first <= layer < stop for layer in layers) for first, stop in spans)

    def _is_head(self, param: str) -> bool:
        tied = self.whole.tie_word_embeddings and self.whole.encoder is None
        return tied and param.startswith("embed.")


def stage_of(spec: "ModelSpec", cuts: tuple[int, ...], index: int) -> "ModelSpec":
    """A stage of the whole model `spec`; that itself where nothing is cut. Media are encoded in the
    first one."""
    if len(cuts) <= 2:
        return spec
    return replace(
        spec,
        layers=spec.layers[cuts[index] : cuts[index + 1]],
        stage=StageSpec(index, cuts, spec),
        vision=None if index else spec.vision,
        audio=None if index else spec.audio,
    )
