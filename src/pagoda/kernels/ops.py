"""The only door to compute.

Each op has one reference in `kernels/ref` (torch, any device) and may have faster forms with the
same signature.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pagoda.kernels import cpu, packing
from pagoda.kernels.cpu import experts as packed_experts
from pagoda.kernels.ref import (
    activation,
    delta_net,
    dequant,
    embedding,
    encoder,
    experts,
    linear,
    norm,
    rope,
    sampling,
)
from pagoda.kernels.ref import (
    draw as drawing,
)
from pagoda.kernels.selector import native as _native
from pagoda.kernels.triton.target import declines

if TYPE_CHECKING:
    from pagoda.kernels.cpu.recording import Recording

Tensor = torch.Tensor


def recording(device: str, max_rows: Sequence[int]) -> "Recording | None":
    """What records the ops of a step on `device` and replays them with one call; None where that
    cannot be done."""
    native = cpu.native() if device == "cpu" else None
    if native is None:
        return None
    from pagoda.kernels.cpu.recording import Recording

    return Recording(native, max_rows)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [rows, size] by int64 index [count]."""
    native = _native(x)
    return x[index] if native is None else native.embed(index, x)


def first_max(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(values, int64 ids) [rows] of the largest of each row of fp32 logits [rows, vocab], the
    lowest id of equals; the value is NaN where the row has one."""
    native = _native(logits)
    return sampling.first_max(logits) if native is None else native.argmax(logits)


DrawParams = drawing.DrawParams
rows_at_once = drawing.rows_at_once


def draw(tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
    """Replace int64 tokens [rows] by draws from softmax(logits / temperature) among the tokens
    that min-p, top-k and top-p keep, applied in that order; where temperature is 0, stay.

    fp32 logits [rows, vocab]; top [rows], each row's largest. Top-k keeps all tokens equal to the
    k-th; top-p the smallest set of most likely tokens that reaches p, lower ids first of equals.
    """
    native = _native(logits)
    if native is None:
        drawing.draw_into(tokens, logits, top, params)
    else:
        native.draw(tokens, logits, top, params)


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(values, int64 ids) [rows, count] of the largest logits, falling; lower ids first of
    equals. Rows with NaN hold any ids."""
    native = _native(logits)
    if native is not None and count <= min(native.max_top_k, logits.shape[1]):
        return native.top_k(logits, count)
    return drawing.top_tokens(logits, count)


def mask_logits(logits: Tensor, index: Tensor, masks: Tensor) -> None:
    """Set to -inf, in rows index[i] of fp32 logits [rows, vocab], what masks[i] does not allow.

    int32 masks [count, words]: bit i % 32 of word i // 32 is set where token i is allowed; int64
    index [count], no row twice.
    """
    native = _native(logits)
    if native is None:
        sampling.mask_logits(logits, index, masks)
    else:
        native.mask_logits(logits, index, masks)


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """Rows of `table` [vocab, hidden] for int64 ids [tokens]."""
    return embedding.embed(token_ids, table)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, computed in fp32, in x's dtype."""
    native = _native(x)
    if native is not None and x.dim() == 2:
        return native.rms_norm(x, weight, eps)
    return norm.rms_norm(x, weight, eps)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    added: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual) in x's dtype, x + residual in residual's); with fp32 `added` [size]
    the sum is (rms_norm(x, added) + residual) * scale.

    Models keep the residual in fp32: in bf16 its rounding is most of the error of a whole model
    (mean KL to fp32 of the default model: 1.4e-3 against 3.8e-4 with fp32). `residual` may be
    overwritten.
    """
    native = _native(x)
    if native is not None:
        return native.add_rms_norm(x, residual, weight, eps, added, scale)
    return norm.add_rms_norm(x, residual, weight, eps, added, scale)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor:
    """(x - mean) / standard deviation * weight + bias over the last dimension, of x + residual
    where there is one; computed in fp32, in x's dtype. Weight and bias are fp32."""
    native = _native(x)
    if native is not None:
        return native.layer_norm(x, weight, bias, eps, residual)
    return norm.layer_norm(x, weight, bias, eps, residual)


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [tokens, heads, dim] rotated, without a cache; else as `rotary_store`."""
    return rope.rotary(q, k, positions, cos_sin)


def encoder_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
) -> Tensor:
    """Attention of each request's tokens to all of its tokens, both ways; no cache.

    q, k, v [tokens, heads, dim], requests end to end: request i owns rows `query_start[i] :
    query_start[i + 1]`. Returns q's shape, contiguous.
    """
    native = _native(q)
    # The native kernels take heads of even sizes.
    if native is not None and q.shape[-1] % 2 == 0:
        return native.encoder_attention(q, k, v, query_start, scale=scale)
    return encoder.encoder_attention(q, k, v, query_start, scale=scale)


def activate_and_mul(x: Tensor, kind: str = "silu") -> Tensor:
    """activation(a) * b for x = [a, b] on the last dimension; `kind` as in `activate`."""
    native = _native(x)
    if native is not None and kind in ("silu", "gelu_tanh"):
        return native.activate_and_mul(x, kind)
    return activation.activate_and_mul(x, kind)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x * sigmoid(gate), both [tokens, size]; rows of the gate may lie any stride apart."""
    native = _native(x)
    if native is not None:
        return native.sigmoid_mul(x, gate)
    return activation.sigmoid_mul(x, gate)


def add_gated(x: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
    """x + added, both [tokens, size]; with a gate [tokens, 1], whose rows may lie any stride
    apart, `added` is multiplied by its sigmoid."""
    native = _native(x)
    if native is not None:
        return native.add_gated(x, added, gate)
    return activation.add_gated(x, added, gate)


StateSlots = delta_net.StateSlots
Decay = delta_net.Decay


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, slots: StateSlots) -> Tensor:
    """silu of each channel's convolution over its last tokens; the current one comes last.

    x [tokens, channels], rows any stride apart; fp32 weight [width, channels]; state
    [slots, width - 1, channels]: the inputs before the request's next token. Rows behind
    `query_start[-1]` are zero.
    """
    native = _native(x)
    if native is not None:
        return native.causal_conv(x, weight, state, slots)
    return delta_net.causal_conv(x, weight, state, slots)


def gated_delta_rule(
    qkv: Tensor, strength: Tensor, decay: Decay, state: Tensor, slots: StateSlots, *, tiled: bool
) -> Tensor:
    """[tokens, value_heads * value_dim]: what the states say to q after each token's k and v.

    With S a head's state, per token: S = exp(decay) S; S += k (sigmoid(strength) (v - S^T k))^T;
    out = S^T q, where k and q have length 1 and 1 / sqrt(key_dim). qkv [tokens, channels] may be
    overwritten; strength (and decay) [tokens, value_heads], rows any stride apart; state [slots,
    value_heads, key_dim, value_dim]. `tiled` as in DeltaNetSpec. Rows behind `query_start[-1]` are
    zero.
    """
    native = _native(qkv)
    if native is not None and native.takes_state(state):
        return native.gated_delta_rule(qkv, strength, decay, state, slots, tiled=tiled)
    return delta_net.gated_delta_rule(qkv, strength, decay, state, slots, tiled=tiled)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm of each head of x [tokens, heads * size] by fp32 weight [size], times silu(gate);
    rows of the gate may lie any stride apart."""
    native = _native(x)
    if native is not None:
        return native.gated_rms_norm(x, gate, weight, eps)
    return delta_net.gated_rms_norm(x, gate, weight, eps)


def activate(x: Tensor, kind: str) -> Tensor:
    """gelu (of the error function), gelu_tanh, relu or silu of each element."""
    native = _native(x)
    if native is not None and kind in ("gelu", "gelu_tanh"):
        return native.gelu(x, tanh=kind == "gelu_tanh")
    return activation.activate(x, kind)


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor, in x's dtype."""
    native = _native(x)
    if native is not None and x.dim() == 2:
        return native.scale(x, factor)
    return activation.scale(x, factor)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in x's dtype."""
    native = _native(x)
    if native is not None and x.dim() == 2:
        return native.soft_cap(x, cap)
    return activation.soft_cap(x, cap)


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(int64 ids, fp32 weights) [tokens, top_k] of the experts with the largest logits of
    [tokens, experts], falling, the lower ids first of equals.

    A weight is the expert's share of a `softmax` over all, its share of one over the chosen
    (`topk_softmax`), or the `sigmoid` of its logit; with `renormalize` divided by their sum, and
    at last multiplied by the expert's own of fp32 `scales` [experts].
    """
    form = _native(logits) or experts
    return form.route(logits, top_k, scoring, renormalize, scales)


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
        from pagoda.kernels.triton import experts as gpu_experts

        return gpu_experts.mix(x, ids, weights, up, down, gating, first, weighs_inputs)
    if isinstance(up, PackedExperts) and isinstance(down, PackedExperts):
        return packed_experts.mix(x, ids, weights, up, down, gating, first, weighs_inputs)
    assert isinstance(up, PlainExperts) and isinstance(down, PlainExperts)
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
