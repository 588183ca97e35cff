"""The only door to compute.

Each op has one reference in `kernels/ref` (torch, any device) and may have faster forms with the
same signature, which stands in `kernels/protocol`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch

from pagoda.kernels import cpu, packing
from pagoda.kernels.cpu import experts as packed_experts
from pagoda.kernels.cpu import heads as packed_heads
from pagoda.kernels.protocol import Ops
from pagoda.kernels.ref import adapters as low_rank
from pagoda.kernels.ref import convolution, delta_net, embedding, experts, heads, linear
from pagoda.kernels.ref import draw as drawing
from pagoda.kernels.ref.dequant import formats as dequant
from pagoda.kernels.selector import form
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
draw_shares = drawing.shares


def draw(tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
    """As `Ops.draw`."""
    form(logits).draw(tokens, logits, top, params)


top_tokens = _by_first(Ops.top_tokens)
mask_logits = _by_first(Ops.mask_logits)


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """Rows of `table` [vocab, hidden] for int64 ids [tokens]."""
    return embedding.embed(token_ids, table)


rms_norm = _by_first(Ops.rms_norm)
norm_in_place = _by_first(Ops.norm_in_place)
add_rms_norm = _by_first(Ops.add_rms_norm)
add_to = _by_first(Ops.add_to)
layer_norm = _by_first(Ops.layer_norm)
rotary = _by_first(Ops.rotary)
encoder_attention = _by_first(Ops.encoder_attention)
patch_attention = _by_first(Ops.patch_attention)
choose_keys = _by_first(Ops.choose_keys)
activate_and_mul = _by_first(Ops.activate_and_mul)
activate_mul = _by_first(Ops.activate_mul)
sigmoid_mul = _by_first(Ops.sigmoid_mul)
add_gated = _by_first(Ops.add_gated)
add_adapters = _by_first(Ops.add_adapters)
keep_sum = _by_first(Ops.keep_sum)
StateSlots = delta_net.StateSlots
Decay = delta_net.Decay


causal_conv = _by_first(Ops.causal_conv)
gated_delta_rule = _by_first(Ops.gated_delta_rule)
state_space = _by_first(Ops.state_space)
gated_rms_norm = _by_first(Ops.gated_rms_norm)
activate = _by_first(Ops.activate)
scale = _by_first(Ops.scale)
soft_cap = _by_first(Ops.soft_cap)
mix_streams = _by_first(Ops.mix_streams)
scale_columns = _by_first(Ops.scale_columns)
match_rms = _by_first(Ops.match_rms)
cut_columns = _by_first(Ops.cut_columns)
route = _by_first(Ops.route)
Routed = experts.Routed
Beside = experts.Beside
Correction = experts.Correction
Gating = experts.Gating
PlainExperts = experts.PlainExperts
PackedExperts = packed_experts.PackedExperts
AdapterTensors = low_rank.AdapterTensors
ExpertAdapters = low_rank.ExpertAdapters
packed_experts_matrix = packing.packed_experts_matrix
load_packed_expert = packing.load_packed_expert


def mix_experts(
    x: Tensor,
    routed: Routed,
    up: PlainExperts | PackedExperts,
    down: PlainExperts | PackedExperts,
    gating: Gating,
    first: int = 0,
    *,
    weighs_inputs: bool = False,
    beside: Beside | None = None,
    adapters: ExpertAdapters | None = None,
) -> Tensor:
    """The sum over each token's experts of weight * down(gated(up(x))), and of what is `beside`
    them, in x's shape and dtype. To the products of up and of down `adapters` add what
    `add_adapters` adds.

    x [tokens, hidden]; `routed` as `route` returns it. `up` and `down` hold the experts from
    `first` on, whose matrices have the rows (gate, then up) and hidden; experts that they do not
    hold add nothing. With `weighs_inputs` a weight is multiplied with what its expert reads,
    instead. Both are packed or neither is.
    """
    if (not x.is_cpu and declines(x) is None) or packing.on_gpu(down):
        from pagoda.kernels.triton.products import experts as gpu_experts

        return gpu_experts.mix(x, routed, up, down, gating, first, weighs_inputs, beside, adapters)
    kinds = packed_experts.PackedExperts, experts.PlainExperts
    if isinstance(up, kinds[0]) and isinstance(down, kinds[0]):
        mixed = packed_experts.mix(x, routed, up, down, gating, first, weighs_inputs, adapters)
    else:
        assert isinstance(up, kinds[1]) and isinstance(down, kinds[1])
        mixed = experts.mix(x, routed, up, down, gating, first, weighs_inputs, adapters)
    return mixed if beside is None else add_gated(mixed, *beside)


def head_products(
    x: Tensor,
    weight: PlainExperts | PackedExperts,
    kept: int = 0,
    behind: Tensor | None = None,
) -> Tensor:
    """[tokens, heads * (kept + rows) + behind's columns]: for each head the first `kept` columns of
    x [tokens, heads, kept + columns] as they are, then the head's matrix [rows, columns] times the
    others; and what is `behind` [tokens, any] behind all heads.

    `weight` has a head's matrix in the place of an expert's; x and `behind` may be columns of
    wider rows. In x's dtype; a CPU's packed matrices take fp32.
    """
    if isinstance(weight, packed_experts.PackedExperts):
        return packed_heads.head_products(x, weight, kept, behind)
    return heads.head_products(x, weight.weight, kept, behind)


def matmul(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """x [tokens, in] times weight [out, in] transposed, plus bias [out]; in x's dtype unless
    `out_dtype` asks for a wider one, which the sums then have throughout."""
    return linear.matmul(x, weight, bias, out_dtype)


def channel_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Each channel of x [height, width, channels] with a kernel of its own, of fp32 weight
    [kernel, kernel, channels]: [rows, columns, channels] in x's dtype, as many as kernels fit, each
    `stride` pixels from the last."""
    return convolution.channel_conv(x, weight, stride)


def query_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of all heads of q [rows, heads, dim] to the same keys and values [places, dim]
    (multi-query attention): q's shape."""
    return convolution.query_attention(q, k, v, scale)


def dequantize(raw: Tensor, storage: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decode uint8 [rows, bytes per row] of a storage format to [rows, columns]."""
    return dequant.dequantize(raw, storage, dtype)


DEQUANTIZABLE = dequant.SUPPORTED
"""Storage formats that `dequantize` decodes."""


can_pack = packing.can_pack
packed_storages = packing.packed_storages
packed_matrix = packing.packed_matrix
load_packed = packing.load_packed
mapped_packed = packing.mapped_packed
settle_packed = packing.settle_packed
packed_matmul = packing.packed_matmul
packed_rows = packing.packed_rows
