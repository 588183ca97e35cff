"""`kernels.protocol.Ops` in Triton, for tensors on a GPU.

Where Triton would be the slower one, torch computes: before sm_80 its products use no tensor
cores, so that only what memory bounds is left to it there. Large products are torch's everywhere.
"""

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.ref import attention as torch_attention
from pagoda.kernels.ref import encoder as torch_encoder
from pagoda.kernels.ref.activation import keep_sum
from pagoda.kernels.ref.choose_keys import choose_keys
from pagoda.kernels.ref.kv_cache import KVScales
from pagoda.kernels.ref.state_space import state_space
from pagoda.kernels.ref.streams import cut_columns, match_rms, mix_streams, scale_columns
from pagoda.kernels.triton import attention, kv_cache
from pagoda.kernels.triton.activation import (
    activate,
    activate_and_mul,
    activate_mul,
    add_gated,
    add_to,
    scale,
    sigmoid_mul,
    soft_cap,
)
from pagoda.kernels.triton.adapters import add_adapters
from pagoda.kernels.triton.delta_net import causal_conv, gated_delta_rule
from pagoda.kernels.triton.draw import draw
from pagoda.kernels.triton.kv_cache import rotate
from pagoda.kernels.triton.norm import (
    add_rms_norm,
    gated_rms_norm,
    layer_norm,
    norm_in_place,
    rms_norm,
)
from pagoda.kernels.triton.products.routing import route
from pagoda.kernels.triton.rope import rotary
from pagoda.kernels.triton.sampling import first_max, mask_logits, top_tokens
from pagoda.kernels.triton.target import capability, capability_of, offers

__all__ = [
    "activate", "activate_and_mul", "activate_mul", "add_adapters", "add_gated", "add_rms_norm",
    "add_to", "causal_conv", "choose_keys", "cut_columns", "declines", "draw", "encoder_attention",
    "first_max", "gated_delta_rule", "gated_rms_norm", "keep_sum", "layer_norm", "mask_logits",
    "match_rms", "mix_streams", "norm_in_place", "paged_attention", "patch_attention",
    "rms_norm", "rotary", "rotary_store", "rotate", "route", "scale", "scale_columns",
    "sigmoid_mul", "soft_cap", "state_space", "take_rows", "top_tokens",
]  # fmt: skip

Tensor = torch.Tensor


def declines(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why activations of `dtype` are not computed on here; None where they are."""
    return offers(capability_of(device), dtype)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """As `Ops.take_rows`."""
    return x.index_select(0, index)


def rotary_store(
    qkv: Tensor,
    heads: int,
    positions: Tensor,
    cos_sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    q_scales: Tensor | None = None,
    norm_values: bool = False,
    values_are_keys: bool = False,
    kv_scales: KVScales | None = None,
) -> Tensor:
    """As `CpuOps.rotary_store`; q has memory of its own, and qkv stays as it is."""
    norms = None if q_norm is None or k_norm is None else (q_norm, k_norm, eps, norm_values)
    return kv_cache.rotary_store(
        qkv,
        positions,
        cos_sin,
        k_cache,
        v_cache,
        slot_mapping,
        norms,
        q_scales,
        values_are_keys,
        kv_scales,
    )


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    kv_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunked: bool = False,
    sinks: Tensor | None = None,
    cap: float | None = None,
    sees_until: Tensor | None = None,
    kv_scales: KVScales | None = None,
    chosen: Tensor | None = None,
    host_query_start: npt.NDArray[np.int32] | None = None,
) -> Tensor:
    """As `AttentionBackend.attend`; `host_query_start` is as `attention.paged_attention` has it."""
    if chosen is not None:
        return torch_attention.paged_attention(
            q, k_cache, v_cache, block_table, query_start, kv_lens, scale=scale, chosen=chosen
        )
    has_prompts = q.shape[0] > kv_lens.shape[0]
    form = torch_attention if has_prompts and _without_tensor_cores(q) else attention
    attended: Tensor = form.paged_attention(
        q, k_cache, v_cache, block_table, query_start, kv_lens,
        scale=scale, window=window, chunked=chunked, sinks=sinks, cap=cap,
        sees_until=sees_until,
        kv_scales=kv_scales, host_query_start=host_query_start,
    )  # fmt: skip
    return attended


def encoder_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """As `Ops.encoder_attention`."""
    form = torch_encoder if _without_tensor_cores(q) or q.shape[-1] % 2 else attention
    attended: Tensor = form.encoder_attention(q, k, v, query_start, scale=scale, window=window)
    return attended


def patch_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
) -> Tensor:
    """As `Ops.patch_attention`."""
    return encoder_attention(q, k, v, query_start, scale=scale)


def _without_tensor_cores(x: Tensor) -> bool:
    """Triton's products before sm_80."""
    return capability(x) < 80
