"""Llama, and Qwen3 as a dense model and as a mixture of experts."""

from collections.abc import Iterator
from dataclasses import dataclass

import gguf

from bench.peers.shapes.decoder import Decoder, Tensor, norm


@dataclass(frozen=True, kw_only=True)
class Llama(Decoder):
    architecture = "llama"

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self.attention()
        yield norm("ffn_norm", self.hidden)
        yield from self.dense()


@dataclass(frozen=True, kw_only=True)
class Qwen3(Decoder):
    architecture = "qwen3"

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self.attention()
        yield from self.head_norms()
        yield norm("ffn_norm", self.hidden)
        yield from self.dense()


@dataclass(frozen=True, kw_only=True)
class Qwen3Vl(Qwen3):
    """The text side."""

    architecture = "qwen3vl"
    deepstack: int
    """Layers behind which something of a picture is added."""

    def describe(self, writer: gguf.GGUFWriter) -> None:
        super().describe(writer)
        writer.add_num_deepstack_layers(self.deepstack)
        half = self.head_dim // 2
        writer.add_rope_dimension_sections([half - half // 3 * 2, half // 3, half // 3, 0])


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Decoder):
    architecture = "qwen3moe"

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self.attention()
        yield from self.head_norms()
        yield norm("ffn_norm", self.hidden)
        yield from self.mixture()
