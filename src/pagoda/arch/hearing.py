"""What an encoder of sound is: Whisper's (arXiv 2212.04356), alone or in front of a decoder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.arch.spec import Activation, WeightRule


@dataclass(frozen=True)
class AudioSpec:
    """A transformer behind two convolutions, the second of which halves the frames of a log-mel
    spectrogram; its outputs replace the embeddings of a sound's tokens."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: "Activation"
    num_mels: int
    """Values of a frame, of which there are 100 in a second."""
    num_positions: int
    """Outputs of a window, each of two frames: 1500 of 30 s."""
    weights: tuple["WeightRule", ...]
    norm_eps: float = 1e-5
    pooled: bool = False
    """Neighbouring outputs are averaged, two to a token, before the last norm."""
    stacked: int = 1
    """So many neighbouring outputs become a token, side by side."""
    projected: bool = False
    """A linear layer brings them to the decoder's width..."""
    deep: bool = False
    """...or two, without biases and with `activation` between them."""

    # As in VisionSpec.
    gated = rms_norms = qk_norm = scaled = False
    block_bias = qkv_bias = True

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sound."""
        return self.num_positions // (2 if self.pooled else self.stacked)
