"""Llama's layers behind a vision transformer, or without one: Qwen3-VL (arXiv 2511.21631), Qwen2-VL
and Qwen2.5-VL (arXiv 2409.12191, 2502.13923), with or without experts, Mistral Small 3.1 and
later, InternVL 3 (2504.10479), Llama 4, and Phi-4-multimodal (2503.01743)."""

from collections.abc import Callable

from pagoda.arch.spec import DraftHeadSpec, ModelSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.tiled_vision import TiledTower
from pagoda.layers.vision import VisionTower
from pagoda.models.base import CausalLM, DraftHead, Encoders
from pagoda.models.eagle3 import Eagle3Head
from pagoda.models.llama import LlamaLayer


class SeeingLlama(CausalLM):
    layer_class = LlamaLayer
    draft_head_class: Callable[[CausalLM, DraftHeadSpec], DraftHead] = Eagle3Head

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        if spec.vision is not None and context.parallel.sees:
            tower = TiledTower if spec.vision.tiled else VisionTower
            self.vision = tower(context.whole, spec.vision, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.vision is None else {"image": self.vision.slices}
