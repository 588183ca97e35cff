"""Mixers that keep a state of constant size of each request, instead of keys and values."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RecurrentSpec(ABC):
    """What the cache, the plan and the split over devices must know of such a mixer."""

    splits: ClassVar[Mapping[str, str]]
    """Its fields that are divided over devices, and how they are called in errors."""
    capturable: ClassVar[bool] = True
    """Whether a GPU's steps with it can be captured as graphs: all of its ops have kernels there,
    none of which asks for numbers on the host."""

    @property
    @abstractmethod
    def state_shapes(self) -> tuple[Shape, ...]:
        """The parts of one layer's state, fp32 each. The first holds the last inputs of a causal
        convolution, [width - 1, channels]."""

    @property
    @abstractmethod
    def inner_width(self) -> int:
        """Numbers that its input layer makes of a token, without single ones per head."""

    @property
    def operations(self) -> float:
        """For one token, to update, read and write its state: 7 for each element. Convolutions
        are too little to count."""
        return 7.0 * sum(map(prod, self.state_shapes[1:]))


@dataclass(frozen=True)
class DeltaNetSpec(RecurrentSpec):
    """A gated delta net (arXiv 2412.06464)."""

    splits = {
        "num_key_heads": "key heads of delta nets",
        "num_value_heads": "value heads of delta nets",
    }

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    """Tokens that the causal convolution in front sees, the current one included."""
    tiled: bool = False
    """Value head i goes with key head i % num_key_heads (llama.cpp's order); else equal runs of
    value heads share a key head."""

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The convolution's inputs, and a matrix for each value head."""
        channels = self.inner_width - self.num_value_heads * self.value_head_dim
        matrices = (self.num_value_heads, self.key_head_dim, self.value_head_dim)
        return (self.conv_width - 1, channels), matrices

    @property
    def inner_width(self) -> int:
        """q, k, v and the output gate."""
        keys = self.num_key_heads * self.key_head_dim
        return 2 * (keys + self.num_value_heads * self.value_head_dim)


@dataclass(frozen=True)
class ShortConvSpec(RecurrentSpec):
    """LFM2's gated short convolution: output(c * conv(b * x)), where b, c and x are linear in the
    token (arXiv 2511.23404)."""

    splits = {"channels": "channels of short convolutions"}

    channels: int
    conv_width: int
    """Tokens that the causal convolution sees, the current one included."""
    bias: bool = False
    """On the linear layers and the convolution."""

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The convolution's inputs are all that is kept."""
        return ((self.conv_width - 1, self.channels),)

    @property
    def inner_width(self) -> int:
        """b, c and x."""
        return 3 * self.channels


@dataclass(frozen=True)
class Mamba2Spec(RecurrentSpec):
    """Mamba-2's selective state space (arXiv 2405.21060): a head's state S becomes
    exp(rate * dt) S + b (dt x)^T with each token, and gives S^T c; a convolution makes x, b, c."""

    splits = {"num_heads": "heads of Mamba-2", "num_groups": "groups of Mamba-2"}
    capturable = False

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    """So many runs of heads: those of one share b, c and the norm behind."""
    conv_width: int
    """Tokens that the causal convolution sees, the current one included."""
    norm_eps: float
    conv_bias: bool = True
    bias: bool = False
    """On the linear layers."""

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The convolution's inputs, and a matrix for each head."""
        channels = self.inner_size + 2 * self.num_groups * self.state_size
        return (self.conv_width - 1, channels), (self.num_heads, self.state_size, self.head_dim)

    @property
    def inner_size(self) -> int:
        """Features of all heads' x."""
        return self.num_heads * self.head_dim

    @property
    def inner_width(self) -> int:
        """The output gate, x, b and c."""
        return 2 * (self.inner_size + self.num_groups * self.state_size)
