"""What all shapes have in common: tensors, layer by layer, and metadata."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import gguf


@dataclass(frozen=True)
class Tensor:
    name: str
    """As in the file, but for the `blk.N.` of a layer's."""
    rows: int
    """0 for a vector."""
    columns: int
    copies: int = 0
    """Matrices in it, one for each expert; 0: it is one."""
    plain: bool = False
    """In fp32 whatever the format; vectors are anyway."""
    values: tuple[float, ...] = (1.0,)
    """Of a vector: one for all its elements, or one for each."""


def vector(name: str, size: int, *values: float) -> Tensor:
    """Of ones where no values are given."""
    return Tensor(name, 0, size, values=values or (1.0,))


def norm(name: str, size: int) -> Tensor:
    return vector(f"{name}.weight", size)


def matrix(name: str, rows: int, columns: int, copies: int = 0) -> Tensor:
    return Tensor(f"{name}.weight", rows, columns, copies)


def plain(name: str, rows: int, columns: int) -> Tensor:
    return Tensor(name, rows, columns, plain=True)


@dataclass(frozen=True, kw_only=True)
class Decoder(ABC):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int = 0
    """0: the tokenizer's."""
    tied: bool = False
    """The embedding table is the head, too."""
    mlp: int = 0
    """0: it has experts alone."""
    experts: int = 0
    used: int = 0
    """Experts that a token goes to."""
    expert_mlp: int = 0

    architecture: ClassVar[str]

    def tensors(self, tokens: int) -> Iterator[Tensor]:
        """`tokens`: the tokenizer's."""
        yield matrix("token_embd", self.vocabulary or tokens, self.hidden)
        yield norm("output_norm", self.hidden)
        if not self.tied:
            yield matrix("output", self.vocabulary or tokens, self.hidden)
        for index in range(self.layers):
            for tensor in self.layer(index):
                yield replace(tensor, name=f"blk.{index}.{tensor.name}")

    @abstractmethod
    def layer(self, index: int) -> Iterator[Tensor]: ...

    def attention(self) -> Iterator[Tensor]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield norm("attn_norm", self.hidden)
        yield matrix("attn_q", q, self.hidden)
        yield matrix("attn_k", kv, self.hidden)
        yield matrix("attn_v", kv, self.hidden)
        yield matrix("attn_output", self.hidden, q)

    def head_norms(self) -> Iterator[Tensor]:
        yield norm("attn_q_norm", self.head_dim)
        yield norm("attn_k_norm", self.head_dim)

    def dense(self) -> Iterator[Tensor]:
        yield matrix("ffn_gate", self.mlp, self.hidden)
        yield matrix("ffn_up", self.mlp, self.hidden)
        yield matrix("ffn_down", self.hidden, self.mlp)

    def mixture(self) -> Iterator[Tensor]:
        yield plain("ffn_gate_inp.weight", self.experts, self.hidden)
        yield matrix("ffn_gate_exps", self.expert_mlp, self.hidden, self.experts)
        yield matrix("ffn_up_exps", self.expert_mlp, self.hidden, self.experts)
        yield matrix("ffn_down_exps", self.hidden, self.expert_mlp, self.experts)

    def describe(self, writer: gguf.GGUFWriter) -> None:
        """The sizes; what speed does not depend on is the same in all shapes."""
        writer.add_name(f"Random {self.architecture}")
        writer.add_block_count(self.layers)
        writer.add_context_length(32768)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.mlp or self.expert_mlp)
        writer.add_head_count(self.heads)
        writer.add_rope_freq_base(500000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        self.describe_heads(writer)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_feed_forward_length(self.expert_mlp)

    def describe_heads(self, writer: gguf.GGUFWriter) -> None:
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
