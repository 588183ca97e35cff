"""What encoders have beside the layers of a model."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EncoderSpec:
    """What sets an encoder apart: what it adds to each token's embedding, and what stands on its
    last layer."""

    num_positions: int = 0
    """Rows of the table of learned positions; 0 where there is none."""
    num_token_types: int = 0
    """Rows of the table that tells a pair's texts apart; 0 where there is none."""
    position_offset: int = 0
    """The row of a text's first token (RoBERTa keeps the first rows for padding)."""
    embed_norm: bool = True
    """A norm stands behind the embeddings."""
    norm_bias: bool = True
    """Norms have a bias."""
    rms_norms: bool = False
    """Norms have no mean either, and sums are kept in fp32, as they leave fp16's range."""
    final_norm: bool = False
    """One stands behind the last layer."""
    head: Literal["tanh", "normed"] = "tanh"
    """What a classifier reads of a pooled state: tanh(dense(x)), or norm(gelu(dense(x)))."""
    head_bias: bool = True
    """The head's dense layer has a bias."""
