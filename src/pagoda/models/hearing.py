"""Dense decoders behind Whisper's encoder: Qwen2-Audio (arXiv 2407.10759) and Voxtral
(arXiv 2507.13264)."""

from pagoda.arch.spec import ModelSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.hearing import AudioTower
from pagoda.models.base import CausalLM, Encoders
from pagoda.models.llama import LlamaLayer


class HearingLlama(CausalLM):
    layer_class = LlamaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        if spec.audio is not None and context.parallel.sees:
            self.audio = AudioTower(context.whole, spec.audio, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.audio is None else {"audio": self.audio.slices}
