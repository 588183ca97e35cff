"""Qwen3-VL (arXiv 2511.21631): Qwen3's layers, with or without experts, behind a vision
transformer."""

import torch

from pagoda.arch.spec import ModelSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.vision import Grid, Slices, VisionTower
from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer


class Qwen3VL(CausalLM):
    layer_class = LlamaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        assert spec.vision is not None
        self.vision = VisionTower(context, spec.vision, spec.hidden_size)

    def image_slices(self, patches: torch.Tensor, grid: Grid) -> Slices:
        return self.vision.slices(patches, grid)
