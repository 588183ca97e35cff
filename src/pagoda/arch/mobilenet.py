"""What MobileNet-V5 is: a tower of convolutions and attention in front of a language model.

There is no paper on it; blocks are those of MobileNet-V4 (arXiv 2404.10518), put together as in
`timm.models.mobilenetv5`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EdgeBlock:
    """A convolution that widens each pixel, and a product that narrows it again."""

    in_channels: int
    inner: int
    channels: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class InvertedBlock:
    """A product that widens each pixel, and one that narrows it again; convolutions channel by
    channel may stand in front of the first and between the two."""

    in_channels: int
    inner: int
    channels: int
    first: int
    """The kernel of the convolution in front; 0: there is none."""
    middle: int
    """Likewise of the one between."""
    stride: int
    """The stride of the convolution between, or else of the one in front."""


@dataclass(frozen=True)
class QueryBlock:
    """Attention in which all heads share one key and one value."""

    channels: int
    num_heads: int
    head_dim: int
    kv_stride: int
    """With more than 1, a convolution of `kernel` makes fewer pixels for keys, and another one for
    values."""
    kernel: int

    @property
    def in_channels(self) -> int:
        return self.channels

    @property
    def stride(self) -> int:
        return 1


Block = EdgeBlock | InvertedBlock | QueryBlock


@dataclass(frozen=True)
class MobileNetSpec:
    """What a `VisionSpec` lacks of it."""

    stem: int
    """Channels behind the first convolution, which has `STEM_KERNEL` and a stride of 2."""
    stages: tuple[tuple[Block, ...], ...]
    """What the last two make is put side by side, as large as what the first of them makes."""
    inner: int
    """Channels between the two products that make a token's of both."""
    tokens_side: int
    """A picture becomes so many rows of tokens, and as many columns."""
    num_words: int
    """Embeddings of words that the tower's embedder has..."""
    end_word: int
    """...and the one among them that ends each picture."""

    @property
    def fused(self) -> int:
        """Channels of the last two stages."""
        return sum(stage[-1].channels for stage in self.stages[-2:])

    @property
    def side_unit(self) -> int:
        """Pixels of which the side of a picture is a multiple, so that a token is a square of
        pixels of the last stage but one."""
        unit = 2 * self.tokens_side
        for stage in self.stages[:-1]:
            for block in stage:
                unit *= block.stride
        return unit


STEM_KERNEL = 3
EPS = 1e-6
"""What the norms of the tower add to a mean square, as timm has it."""
MAX_SIDE = 768
"""The side of pictures as published; smaller ones may be read."""
