"""What small Gemma models have beside the layers of a decoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerInputSpec:
    """What each layer reads of a token beside its hidden state (per-layer embeddings): the token's
    row of a table, added to a projection of its embedding."""

    size: int
    """Numbers of a token for one layer; the table's rows have those of all layers."""
    vocab_size: int
    """Rows of the table."""
    media_row: int = 0
    """The row of tokens that a medium's embeddings take the place of."""


@dataclass(frozen=True)
class AltUpSpec:
    """A token has several hidden states, of which layers compute the first and guess the others
    (AltUp, arXiv 2301.13310); beside attention stands a product of low rank (LAuReL, arXiv
    2411.07501)."""

    num_streams: int
    laurel_rank: int
    scaled: bool = True
    """What a layer's input meets is multiplied by a vector."""
