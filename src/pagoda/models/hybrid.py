"""Decoders in which layers with a state stand between those with attention: LFM2 (arXiv
2511.23404), Granite 4, Nemotron-H (arXiv 2504.03624), and Qwen3.5's language model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pagoda.arch.recurrent import DeltaNetSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.delta_net import DeltaNet
from pagoda.layers.mamba2 import Mamba2
from pagoda.layers.short_conv import ShortConv
from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer

_MIXERS: Mapping[type[RecurrentSpec], tuple[str, Callable[..., nn.Module]]] = {
    DeltaNetSpec: ("delta_net", DeltaNet),
    ShortConvSpec: ("short_conv", ShortConv),
    Mamba2Spec: ("mamba2", Mamba2),
}


class HybridLayer(LlamaLayer):
    """Llama's, with a recurrent mixer in the place of attention where the spec has one."""

    def add_mixer(
        self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int
    ) -> None:
        mixer: Any = layer.mixer
        if isinstance(mixer, AttentionSpec):
            self.place = "attention"
            super().add_mixer(context, spec, layer, index)
            return
        self.place, made = _MIXERS[type(mixer)]
        setattr(self, self.place, made(context, mixer, spec.hidden_size, spec.norm_eps, index))

    def mix(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        out: torch.Tensor = getattr(self, self.place)(hidden_states, batch)
        return out


class HybridForCausalLM(CausalLM):
    layer_class = HybridLayer
