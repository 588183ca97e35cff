"""Gemma 4 with experts beside each mlp: every sixth layer is without a window, and its heads are
wider, fewer for keys, and take their keys for values."""

from collections.abc import Iterator
from dataclasses import dataclass

import gguf

from bench.peers.shapes.decoder import Decoder, Tensor, matrix, norm, plain, vector

_EVERY = 6
# The part of a head that turns in the layers without a window; the frequencies of the rest are
# divided by so much that they stand still.
_TURNING, _STILL = 0.25, 1e30


@dataclass(frozen=True, kw_only=True)
class Gemma4Moe(Decoder):
    """`kv_heads` and `head_dim` are those of the layers with a window."""

    window: int
    global_kv_heads: int
    global_head_dim: int

    architecture = "gemma4"

    def tensors(self, tokens: int) -> Iterator[Tensor]:
        half = self.global_head_dim // 2
        turning = int(half * _TURNING)
        factors = [1.0] * turning + [_STILL] * (half - turning)
        yield vector("rope_freqs.weight", half, *factors)
        yield from super().tensors(tokens)

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self._attention(self._has_window(index))
        yield norm("ffn_norm", self.hidden)
        yield from self.dense()
        for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2", "post_ffw_norm"):
            yield norm(name, self.hidden)
        yield plain("ffn_gate_inp.weight", self.experts, self.hidden)
        yield vector("ffn_gate_inp.scale", self.hidden)
        yield matrix("ffn_gate_up_exps", 2 * self.expert_mlp, self.hidden, self.experts)
        yield matrix("ffn_down_exps", self.hidden, self.expert_mlp, self.experts)
        yield vector("ffn_down_exps.scale", self.experts)
        yield vector("layer_output_scale.weight", 1)

    def _attention(self, has_window: bool) -> Iterator[Tensor]:
        size = self.head_dim if has_window else self.global_head_dim
        q = self.heads * size
        kv = (self.kv_heads if has_window else self.global_kv_heads) * size
        yield norm("attn_norm", self.hidden)
        yield matrix("attn_q", q, self.hidden)
        yield matrix("attn_k", kv, self.hidden)
        if has_window:
            yield matrix("attn_v", kv, self.hidden)
        yield matrix("attn_output", self.hidden, q)
        yield norm("attn_q_norm", size)
        yield norm("attn_k_norm", size)
        yield norm("post_attention_norm", self.hidden)

    def _has_window(self, index: int) -> bool:
        return (index + 1) % _EVERY != 0

    def describe(self, writer: gguf.GGUFWriter) -> None:
        super().describe(writer)
        writer.add_sliding_window(self.window)
        writer.add_shared_kv_layers(0)
        writer.add_embedding_length_per_layer_input(0)
        writer.add_final_logit_softcapping(30.0)
        writer.add_rope_dimension_count(self.global_head_dim)
        writer.add_rope_dimension_count_swa(self.head_dim)
        writer.add_rope_freq_base_swa(10000.0)

    def describe_heads(self, writer: gguf.GGUFWriter) -> None:
        windows = [self._has_window(index) for index in range(self.layers)]
        writer.add_sliding_window_pattern(windows)
        writer.add_head_count_kv(
            [self.kv_heads if has_window else self.global_kv_heads for has_window in windows]
        )
        writer.add_key_length(self.global_head_dim)
        writer.add_value_length(self.global_head_dim)
        writer.add_key_length_swa(self.head_dim)
        writer.add_value_length_swa(self.head_dim)
