"""Qwen3.5 and 3.6 as mixtures: gated delta nets, attention with an output gate in every fourth
layer, and an expert that all tokens share. Without a draft head."""

from collections.abc import Iterator
from dataclasses import dataclass

import gguf

from bench.peers.shapes.decoder import Decoder, Tensor, matrix, norm, plain, vector

_EVERY = 4


@dataclass(frozen=True, kw_only=True)
class Qwen35Moe(Decoder):
    key_heads: int
    value_heads: int
    state: int
    """Rows, and columns, of the state of each of a delta net's value heads."""
    conv_width: int
    shared_mlp: int
    turning: int
    """Elements of a head of attention that turn."""

    architecture = "qwen35moe"

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self._delta_net() if (index + 1) % _EVERY else self._gated_attention()
        yield norm("post_attention_norm", self.hidden)
        yield from self.mixture()
        yield vector("ffn_gate_inp_shexp.weight", self.hidden, 0.02)
        yield matrix("ffn_gate_shexp", self.shared_mlp, self.hidden)
        yield matrix("ffn_up_shexp", self.shared_mlp, self.hidden)
        yield matrix("ffn_down_shexp", self.hidden, self.shared_mlp)

    def _gated_attention(self) -> Iterator[Tensor]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield norm("attn_norm", self.hidden)
        yield matrix("attn_q", 2 * q, self.hidden)
        yield matrix("attn_k", kv, self.hidden)
        yield matrix("attn_v", kv, self.hidden)
        yield matrix("attn_output", self.hidden, q)
        yield from self.head_norms()

    def _delta_net(self) -> Iterator[Tensor]:
        values = self.value_heads * self.state
        qkv = 2 * self.key_heads * self.state + values
        yield norm("attn_norm", self.hidden)
        yield matrix("attn_qkv", qkv, self.hidden)
        yield matrix("attn_gate", values, self.hidden)
        yield matrix("ssm_beta", self.value_heads, self.hidden)
        yield matrix("ssm_alpha", self.value_heads, self.hidden)
        yield plain("ssm_conv1d.weight", qkv, self.conv_width)
        yield vector("ssm_a", self.value_heads, -1.0)
        yield vector("ssm_dt.bias", self.value_heads, 0.0)
        yield norm("ssm_norm", self.state)
        yield matrix("ssm_out", self.hidden, values)

    def describe(self, writer: gguf.GGUFWriter) -> None:
        super().describe(writer)
        writer.add_expert_shared_feed_forward_length(self.shared_mlp)
        writer.add_full_attention_interval(_EVERY)
        writer.add_rope_dimension_count(self.turning)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(self.conv_width)
        writer.add_ssm_state_size(self.state)
        writer.add_ssm_group_count(self.key_heads)
        writer.add_ssm_time_step_rank(self.value_heads)
        writer.add_ssm_inner_size(self.value_heads * self.state)
