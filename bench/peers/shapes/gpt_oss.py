"""gpt-oss: biases everywhere, sinks, and a window in every second layer, which readers know."""

from collections.abc import Iterator
from dataclasses import dataclass

import gguf

from bench.peers.shapes.decoder import Decoder, Tensor, norm, plain, vector


@dataclass(frozen=True, kw_only=True)
class GptOss(Decoder):
    window: int

    architecture = "gpt-oss"

    def layer(self, index: int) -> Iterator[Tensor]:
        yield from self.attention()
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            yield vector(f"attn_{name}.bias", heads * self.head_dim, 0.0)
        yield vector("attn_output.bias", self.hidden, 0.0)
        yield vector("attn_sinks.weight", self.heads, 0.0)
        yield norm("post_attention_norm", self.hidden)
        yield from self.mixture()
        yield vector("ffn_gate_inp.bias", self.experts, 0.0)
        yield plain("ffn_gate_exps.bias", self.experts, self.expert_mlp)
        yield plain("ffn_up_exps.bias", self.experts, self.expert_mlp)
        yield plain("ffn_down_exps.bias", self.experts, self.hidden)

    def describe(self, writer: gguf.GGUFWriter) -> None:
        super().describe(writer)
        writer.add_sliding_window(self.window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
