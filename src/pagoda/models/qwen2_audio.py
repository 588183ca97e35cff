"""Qwen2-Audio (arXiv 2407.10759): Qwen2 behind Whisper's encoder."""

from pagoda.arch.spec import ModelSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.hearing import AudioTower
from pagoda.models.base import CausalLM, Encoders
from pagoda.models.llama import LlamaLayer


class Qwen2Audio(CausalLM):
    layer_class = LlamaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        if spec.audio is not None and context.parallel.sees:
            self.audio = AudioTower(context.whole, spec.audio, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.audio is None else {"audio": self.audio.slices}
