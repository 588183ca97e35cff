"""All ops in torch, on any device: what the others are compared with, and leave work to."""

from pagoda.kernels.ref.activation import (
    activate,
    activate_and_mul,
    activate_mul,
    add_gated,
    add_to,
    keep_sum,
    scale,
    sigmoid_mul,
    soft_cap,
)
from pagoda.kernels.ref.adapters import add_adapters
from pagoda.kernels.ref.choose_keys import choose_keys
from pagoda.kernels.ref.delta_net import causal_conv, gated_delta_rule, gated_rms_norm
from pagoda.kernels.ref.draw import draw_into as draw
from pagoda.kernels.ref.draw import top_tokens
from pagoda.kernels.ref.embedding import take_rows
from pagoda.kernels.ref.encoder import encoder_attention, patch_attention
from pagoda.kernels.ref.experts import route
from pagoda.kernels.ref.norm import add_rms_norm, layer_norm, norm_in_place, rms_norm
from pagoda.kernels.ref.rope import rotary
from pagoda.kernels.ref.sampling import first_max, mask_logits
from pagoda.kernels.ref.state_space import state_space
from pagoda.kernels.ref.streams import cut_columns, match_rms, mix_streams, scale_columns

__all__ = [
    "activate", "activate_and_mul", "activate_mul", "add_adapters", "add_gated", "add_rms_norm",
    "add_to", "causal_conv", "choose_keys", "cut_columns", "draw", "encoder_attention", "first_max",
    "gated_delta_rule", "gated_rms_norm", "keep_sum", "layer_norm", "mask_logits", "match_rms",
    "mix_streams", "norm_in_place", "patch_attention", "rms_norm", "rotary", "route", "scale",
    "scale_columns", "sigmoid_mul", "soft_cap", "state_space", "take_rows", "top_tokens",
]  # fmt: skip
