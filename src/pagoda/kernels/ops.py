"""The only door to compute.

Each op has one reference in `kernels/ref` (torch, any device) and may have faster forms with the
same signature, which stands in `kernels/protocol`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch

from pagoda.kernels import cpu, packing
from pagoda.kernels.cpu import experts as packed_experts
from pagoda.kernels.protocol import Ops
from pagoda.kernels.ref import attention, delta_net, embedding, experts, kv_cache, linear, rope
from pagoda.kernels.ref import draw as drawing
from pagoda.kernels.ref.dequant import formats as dequant
from pagoda.kernels.selector import form
from pagoda.kernels.selector import native as _native
from pagoda.kernels.selector import native_attention as _native_attention
from pagoda.kernels.triton.target import declines

if TYPE_CHECKING:
    from pagoda.kernels.cpu.recording import Recording

Tensor = torch.Tensor
P = ParamSpec("P")
R = TypeVar("R")


def _by_first(op: Callable[Concatenate[Ops, Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """The op in the form that its first tensor takes."""
    name = op.__name__

    def call(x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = getattr(form(x), name)(x, *args, **kwargs)
        return result

    call.__name__ = call.__qualname__ = name
    call.__doc__ = op.__doc__
    return call


def recording(device: str, max_rows: Sequence[int]) -> "Recording | None":
    """What records the ops of a step on `device` and replays them with one call; None where that
    cannot be done."""
    native = cpu.native() if device == "cpu" else None
    if native is None:
        return None
    from pagoda.kernels.cpu.recording import Recording

    return Recording(native, max_rows)


take_rows = _by_first(Ops.take_rows)
first_max = _by_first(Ops.first_max)
DrawParams = drawing.DrawParams
rows_at_once = drawing.rows_at_once


def draw(tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
    """As `Ops.draw`."""
    form(logits).draw(tokens, logits, top, params)


top_tokens = _by_first(Ops.top_tokens)
mask_logits = _by_first(Ops.mask_logits)


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """Rows of `table` [vocab, hidden] for int64 ids [tokens]."""
    return embedding.embed(token_ids, table)


rms_norm = _by_first(Ops.rms_norm)
add_rms_norm = _by_first(Ops.add_rms_norm)
layer_norm = _by_first(Ops.layer_norm)


def kv_cache_shapes(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[kv_cache.Shape, kv_cache.Shape]:
    """Of one layer's contiguous K and V (see `kernels.ref.kv_cache`). A block's bytes lie in one
    piece, so that blocks can be moved whole."""
    return kv_cache.shapes(num_blocks, kv_heads, block_size, head_dim, dtype)


class HeadNorms(NamedTuple):
    """RMS norms of each head of q and of k; fp32 weights [dim]."""

    q: Tensor
    k: Tensor
    eps: float
    values: bool = False
    """v has one too, without weights."""


def rotary_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    norms: HeadNorms | None = None,
    q_scales: Tensor | None = None,
    values_are_keys: bool = False,
) -> Tensor:
    """Rotate q and k (after `norms`), write k and v to their slots, and return q.

    qkv [tokens, (heads + 2 * kv_heads) * dim] may be overwritten; with `values_are_keys` it has
    no v, which is then k before its norm and rotation. `cos_sin` is fp32
    [max_position, rotary_dim]: cosines, then sines, halves convention (NeoX), and dimensions past
    rotary_dim pass through; None rotates nothing. fp32 `q_scales` [max_position] are what q is
    multiplied with at last. Returns q [tokens, heads, dim].
    """
    native = _native(qkv)
    if native is None:
        return attention.rotary_store(
            qkv,
            positions,
            cos_sin,
            k_cache,
            v_cache,
            slot_mapping,
            norms,
            q_scales,
            values_are_keys,
        )
    dim = kv_cache.head_dim(v_cache)
    heads = qkv.shape[1] // dim - v_cache.shape[1] * (1 if values_are_keys else 2)
    q_norm, k_norm, eps, norm_values = norms or (None, None, 0.0, False)
    q: Tensor = native.rotary_store(
        qkv, heads, positions, cos_sin, k_cache, v_cache, slot_mapping,
        q_norm=q_norm, k_norm=k_norm, eps=eps, q_scales=q_scales, norm_values=norm_values,
        values_are_keys=values_are_keys,
    )  # fmt: skip
    return q


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [tokens, heads, dim] rotated, without a cache; else as `rotary_store`."""
    return rope.rotary(q, k, positions, cos_sin)


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
    sees_until: Tensor | None = None,
) -> Tensor:
    """Causal attention of q [tokens, heads, dim] over each request's cached tokens.

    Shapes as in `layers.batch`; heads share KV heads in equal groups. The last query of a request
    sees all `kv_lens[i]` tokens (the last `window` of them, if given; if `chunked`, those from the
    last multiple of `window` on). fp32 `sinks` [heads] are logits of one more key each, whose
    value is zero. int32 `sees_until` [tokens] is how many of its request's tokens each query sees
    instead of those up to itself: never falling within a request, at most its `kv_lens`. Returns
    q's shape; rows behind `query_start[-1]` (a step padded to a captured size) are zero.
    """
    form = _native_attention(q) or attention
    return form.paged_attention(
        q, k_cache, v_cache, block_table, query_start, kv_lens,
        scale=scale, window=window, chunked=chunked, sinks=sinks, sees_until=sees_until,
    )  # fmt: skip


encoder_attention = _by_first(Ops.encoder_attention)
activate_and_mul = _by_first(Ops.activate_and_mul)
sigmoid_mul = _by_first(Ops.sigmoid_mul)
add_gated = _by_first(Ops.add_gated)
StateSlots = delta_net.StateSlots
Decay = delta_net.Decay


causal_conv = _by_first(Ops.causal_conv)
gated_delta_rule = _by_first(Ops.gated_delta_rule)
gated_rms_norm = _by_first(Ops.gated_rms_norm)
activate = _by_first(Ops.activate)
scale = _by_first(Ops.scale)
soft_cap = _by_first(Ops.soft_cap)
route = _by_first(Ops.route)
Gating = experts.Gating
PlainExperts = experts.PlainExperts
PackedExperts = packed_experts.PackedExperts
packed_experts_matrix = packing.packed_experts_matrix
load_packed_expert = packing.load_packed_expert


def mix_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up: PlainExperts | PackedExperts,
    down: PlainExperts | PackedExperts,
    gating: Gating,
    first: int = 0,
    *,
    weighs_inputs: bool = False,
) -> Tensor:
    """The sum over each token's experts of weight * down(gated(up(x))), in x's shape and dtype.

    x [tokens, hidden]; `ids` and `weights` as `route` returns them. `up` and `down` hold the
    experts from `first` on, whose matrices have the rows (gate, then up) and hidden; experts that
    they do not hold add nothing. With `weighs_inputs` a weight is multiplied with what its expert
    reads, instead. Both are packed or neither is.
    """
    if (x.is_cuda and declines(x) is None) or packing.on_gpu(down):
        from pagoda.kernels.triton.products import experts as gpu_experts

        return gpu_experts.mix(x, ids, weights, up, down, gating, first, weighs_inputs)
    kinds = packed_experts.PackedExperts, experts.PlainExperts
    if isinstance(up, kinds[0]) and isinstance(down, kinds[0]):
        return packed_experts.mix(x, ids, weights, up, down, gating, first, weighs_inputs)
    assert isinstance(up, kinds[1]) and isinstance(down, kinds[1])
    return experts.mix(x, ids, weights, up, down, gating, first, weighs_inputs)


def matmul(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """x [tokens, in] times weight [out, in] transposed, plus bias [out]; in x's dtype unless
    `out_dtype` asks for a wider one, which the sums then have throughout."""
    return linear.matmul(x, weight, bias, out_dtype)


def dequantize(raw: Tensor, storage: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decode uint8 [rows, bytes per row] of a storage format to [rows, columns]."""
    return dequant.dequantize(raw, storage, dtype)


DEQUANTIZABLE = dequant.SUPPORTED
"""Storage formats that `dequantize` decodes."""


can_pack = packing.can_pack
packed_storages = packing.packed_storages
packed_matrix = packing.packed_matrix
load_packed = packing.load_packed
settle_packed = packing.settle_packed
packed_matmul = packing.packed_matmul
packed_rows = packing.packed_rows
