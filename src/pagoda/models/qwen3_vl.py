"""Qwen3-VL (arXiv 2511.21631): Qwen3's layers, with or without experts, behind a vision
transformer."""

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
