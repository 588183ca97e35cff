"""Qwen3-VL (arXiv 2511.21631), Qwen2-VL and Qwen2.5-VL (arXiv 2409.12191, 2502.13923): the layers
of Qwen3 or Qwen2, with or without experts, behind a vision transformer."""

from pagoda.arch.spec import ModelSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.vision import VisionTower
from pagoda.models.base import CausalLM, Encoders
from pagoda.models.llama import LlamaLayer


class Qwen3VL(CausalLM):
    layer_class = LlamaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        assert spec.vision is not None
        if context.parallel.sees:
            self.vision = VisionTower(context.whole, spec.vision, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {"image": self.vision.slices}
