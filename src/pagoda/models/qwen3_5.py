"""Qwen3.5 and 3.6, dense: gated delta nets (arXiv 2412.06464) between layers of gated attention."""

import torch

from pagoda.arch.spec import DeltaNetSpec, LayerSpec, ModelSpec
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.delta_net import DeltaNet
from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer
from pagoda.models.mtp import MtpHead
from pagoda.models.qwen3_vl import Qwen3VL


class Qwen35Layer(LlamaLayer):
    """Llama's, with a delta net in the place of attention where the spec has one."""

    def add_mixer(
        self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int
    ) -> None:
        self.is_delta_net = isinstance(layer.mixer, DeltaNetSpec)
        if not isinstance(layer.mixer, DeltaNetSpec):
            super().add_mixer(context, spec, layer, index)
            return
        self.delta_net = DeltaNet(context, layer.mixer, spec.hidden_size, spec.norm_eps, index)

    def mix(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        mixer = self.delta_net if self.is_delta_net else self.attention
        out: torch.Tensor = mixer(hidden_states, batch)
        return out


class Qwen35ForCausalLM(CausalLM):
    layer_class = Qwen35Layer
    draft_head_class = MtpHead


class Qwen35(Qwen3VL):
    """With its vision tower."""

    layer_class = Qwen35Layer
    draft_head_class = MtpHead
