"""The native kernels on torch tensors: shapes and dtypes are checked here, addresses passed on."""

import numpy as np
import torch

from pagoda.kernels import cpu
from pagoda.kernels.cpu._native import (
    MAX_GROUPS,
    MAX_KEY_DIM,
    MAX_TOP_K,
    VALUE_DIM_UNIT,
    FloatType,
    Native,
    Scoring,
)
from pagoda.kernels.cpu._native import StateSlots as NativeSlots
from pagoda.kernels.cpu.arguments import address as _address
from pagoda.kernels.cpu.arguments import check as _check
from pagoda.kernels.cpu.arguments import check_rows as _check_rows
from pagoda.kernels.cpu.arguments import dims as _dims
from pagoda.kernels.cpu.attention import CpuAttention
from pagoda.kernels.cpu.streams import CpuStreams
from pagoda.kernels.ref import ops as reference
from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.ref.draw import DrawParams
from pagoda.kernels.ref.experts import Correction, Routed
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor

_FLOAT_TYPES = {
    torch.float32: FloatType.float32,
    torch.bfloat16: FloatType.bfloat16,
    torch.float16: FloatType.float16,
}
_DRAW_DTYPES = (np.float32, np.int32, np.float64, np.float32, np.uint64, np.int64)


class CpuOps(CpuAttention, CpuStreams):
    """`Ops` on one pool of threads. Activations are contiguous fp32 unless a docstring differs."""

    def __init__(self, native: Native):
        self._native = native

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As `Ops.rms_norm`."""
        by_heads = x.dim() == 3 and x.dtype == torch.float32 and x.is_contiguous()
        if x.dim() != 2 and not by_heads:
            return reference.rms_norm(x, weight, eps)
        rows, *heads, size = x.shape
        _check("x", x, torch.float32)
        _check("weight", weight, torch.float32, (size,))
        y = empty((rows, *heads, size))
        if heads:
            self._native.gated_rms_norm(
                x.data_ptr(), 0, 0, weight.data_ptr(), y.data_ptr(), rows, *heads, size, eps
            )
            return y
        self._native.rms_norm(
            x.data_ptr(), 0, weight.data_ptr(), y.data_ptr(), rows, size, eps, 0, 1.0
        )
        return y

    def norm_in_place(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """As `Ops.norm_in_place`."""
        rows, size = _dims("x", x, 2)
        _check_rows("x", x, (rows, size))
        _check("weight", weight, torch.float32, (size,))
        self._native.norm_columns(x.data_ptr(), rows, x.stride(0), weight.data_ptr(), size, eps)

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        added: Tensor | None = None,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """As `Ops.add_rms_norm`; `residual` becomes the sum in place."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("residual", residual, torch.float32, (rows, size))
        _check("weight", weight, torch.float32, (size,))
        if added is not None:
            _check("added", added, torch.float32, (size,))
        y = empty((rows, size))
        self._native.rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, size, eps,
            _address(added), scale,
        )  # fmt: skip
        return y, residual

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """As `Ops.activate`."""
        if kind not in ("gelu", "gelu_tanh"):
            return reference.activate(x, kind)
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        y = empty((rows, size))
        self._native.gelu(x.data_ptr(), y.data_ptr(), rows, size, kind == "gelu_tanh")
        return y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """As `Ops.scale`."""
        if x.dim() != 2:
            return reference.scale(x, factor)
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        y = empty((rows, size))
        self._native.scale(x.data_ptr(), y.data_ptr(), rows, size, factor)
        return y

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """As `Ops.soft_cap`."""
        if x.dim() != 2:
            return reference.soft_cap(x, cap)
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        y = empty((rows, size))
        self._native.soft_cap(x.data_ptr(), y.data_ptr(), rows, size, cap)
        return y

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
    ) -> Tensor:
        """As `Ops.layer_norm`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("weight", weight, torch.float32, (size,))
        _check("bias", bias, torch.float32, (size,))
        if residual is not None:
            _check("residual", residual, torch.float32, (rows, size))
        y = empty((rows, size))
        self._native.layer_norm(
            x.data_ptr(), _address(residual), weight.data_ptr(), bias.data_ptr(), y.data_ptr(),
            rows, size, eps,
        )  # fmt: skip
        return y

    def activate_and_mul(self, x: Tensor, kind: str = "silu") -> Tensor:
        """As `Ops.activate_and_mul`."""
        if kind not in ("silu", "gelu_tanh"):
            return reference.activate_and_mul(x, kind)
        rows, width = _dims("x", x, 2)
        _check("x", x, torch.float32)
        if width % 2:
            raise ValueError(f"x has {width} columns; gate and up need an even number.")
        y = empty((rows, width // 2))
        size = width // 2
        self._native.activate_and_mul(
            x.data_ptr(), width, x.data_ptr() + size * x.element_size(), width, y.data_ptr(), rows,
            size, cpu.activation(kind),
        )  # fmt: skip
        return y

    def activate_mul(self, x: Tensor, gate: Tensor, kind: str) -> Tensor:
        """As `Ops.activate_mul`."""
        if kind not in ("silu", "gelu_tanh", "relu", "identity"):
            return reference.activate_mul(x, gate, kind)
        rows, size = _dims("x", x, 2)
        _check_rows("x", x, (rows, size))
        _check_rows("gate", gate, (rows, size))
        y = empty((rows, size))
        self._native.activate_and_mul(
            gate.data_ptr(), gate.stride(0), x.data_ptr(), x.stride(0), y.data_ptr(), rows, size,
            cpu.activation(kind),
        )  # fmt: skip
        return y

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """As `Ops.sigmoid_mul`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check_rows("gate", gate, (rows, size))
        y = empty((rows, size))
        self._native.sigmoid_mul(
            x.data_ptr(), gate.data_ptr(), gate.stride(0), y.data_ptr(), rows, size
        )
        return y

    def add_gated(self, x: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
        """As `Ops.add_gated`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("added", added, torch.float32, (rows, size))
        stride = 0
        if gate is not None:
            _check_rows("gate", gate, (rows, 1))
            stride = gate.stride(0)
        y = empty((rows, size))
        self._native.add_gated(
            x.data_ptr(), added.data_ptr(), _address(gate), stride, y.data_ptr(), rows, size
        )
        return y

    def add_adapters(
        self,
        out: Tensor,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        ranks: Tensor,
        slots: Tensor,
        sizes: tuple[int, ...],
    ) -> None:
        """As `Ops.add_adapters`; rows of out and x may lie any stride apart."""
        (rows,) = _dims("slots", slots, 1)
        count, shards, max_rank, columns = _dims("a", a, 4)
        _check_rows("out", out, (rows, sum(sizes)))
        _check_rows("x", x, (rows, columns))
        _check("a", a, None, (count, len(sizes), max_rank, columns))
        _check("b", b, a.dtype, (count, max_rank, sum(sizes)))
        _check("ranks", ranks, torch.int32, (count,))
        _check("slots", slots, torch.int32)
        self._native.add_adapters(
            out.data_ptr(), out.stride(0), x.data_ptr(), x.stride(0), rows, columns, a.data_ptr(),
            b.data_ptr(), _float_type("a", a), max_rank, ranks.data_ptr(), slots.data_ptr(),
            list(sizes),
        )  # fmt: skip

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """As `Ops.add_to`; `residual` becomes the sum in place."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("residual", residual, torch.float32, (rows, size))
        y = residual.data_ptr()
        self._native.add_gated(x.data_ptr(), y, 0, 0, y, rows, size)
        return residual

    def keep_sum(self, x: Tensor, added: Tensor, kept: Tensor) -> None:
        """As `Ops.keep_sum`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("added", added, torch.float32, (rows, size))
        _check("kept", kept, torch.float32, (len(kept), size))
        if rows > len(kept):
            raise ValueError(f"kept has {len(kept)} rows; x has {rows}.")
        self._native.add_gated(x.data_ptr(), added.data_ptr(), 0, 0, kept.data_ptr(), rows, size)

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As `Ops.gated_rms_norm`."""
        rows, width = _dims("x", x, 2)
        (size,) = _dims("weight", weight, 1)
        _check("x", x, torch.float32)
        _check("weight", weight, torch.float32)
        _check_rows("gate", gate, (rows, width))
        if width % size:
            raise ValueError(f"x has {width} columns, which are no whole heads of {size}.")
        y = empty((rows, width))
        self._native.gated_rms_norm(
            x.data_ptr(), gate.data_ptr(), gate.stride(0), weight.data_ptr(), y.data_ptr(), rows,
            width // size, size, eps,
        )  # fmt: skip
        return y

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        state: Tensor,
        slots: StateSlots,
        *,
        bias: Tensor | None = None,
        silu: bool = True,
    ) -> Tensor:
        """As `Ops.causal_conv`."""
        rows, channels = _dims("x", x, 2)
        width, _ = _dims("weight", weight, 2)
        _check_rows("x", x, (rows, channels))
        _check("weight", weight, torch.float32, (width, channels))
        _check_rows("state", state, (len(state), width - 1, channels))
        if bias is not None:
            _check("bias", bias, torch.float32, (channels,))
        y = empty((rows, channels))
        self._native.causal_conv(
            x.data_ptr(), rows, x.stride(0), weight.data_ptr(), width, channels, state.data_ptr(),
            state.stride(0), _slots(slots, rows), y.data_ptr(), _address(bias), silu,
        )  # fmt: skip
        return y

    def gated_delta_rule(
        self,
        qkv: Tensor,
        strength: Tensor,
        decay: Decay,
        state: Tensor,
        slots: StateSlots,
        *,
        tiled: bool,
    ) -> Tensor:
        """As `Ops.gated_delta_rule`; q and k are overwritten."""
        if state.shape[-2] > MAX_KEY_DIM or state.shape[-1] % VALUE_DIM_UNIT:
            return reference.gated_delta_rule(qkv, strength, decay, state, slots, tiled=tiled)
        rows, channels = _dims("qkv", qkv, 2)
        _, heads, key_dim, value_dim = _dims("state", state, 4)
        key_heads = (channels - heads * value_dim) // (2 * key_dim)
        if key_heads < 1 or heads % key_heads:
            raise ValueError(f"{heads} value heads cannot share {key_heads} key heads equally.")
        _check("qkv", qkv, torch.float32, (rows, 2 * key_heads * key_dim + heads * value_dim))
        _check_rows("strength", strength, (rows, heads))
        _check_rows("decay", decay.x, (rows, heads))
        if strength.stride(0) != decay.x.stride(0):
            raise ValueError("strength and decay must be columns of one tensor.")
        _check("rate", decay.rate, torch.float32, (heads,))
        _check("bias", decay.bias, torch.float32, (heads,))
        _check_rows("state", state, (len(state), heads, key_dim, value_dim))
        out = empty((rows, heads * value_dim))
        self._native.gated_delta_rule(
            qkv.data_ptr(), rows, key_heads, strength.data_ptr(), decay.x.data_ptr(),
            strength.stride(0), decay.rate.data_ptr(), decay.bias.data_ptr(), tiled,
            state.data_ptr(), heads, key_dim, value_dim, state.stride(0), _slots(slots, rows),
            out.data_ptr(),
        )  # fmt: skip
        return out

    def state_space(
        self, xbc: Tensor, decay: Decay, skip: Tensor, state: Tensor, slots: StateSlots
    ) -> Tensor:
        """As `Ops.state_space`."""
        if state.shape[-2] > MAX_KEY_DIM or state.shape[-1] % VALUE_DIM_UNIT:
            return reference.state_space(xbc, decay, skip, state, slots)
        rows, channels = _dims("xbc", xbc, 2)
        _, heads, size, head_dim = _dims("state", state, 4)
        groups = (channels - heads * head_dim) // (2 * size)
        if groups < 1 or heads % groups:
            raise ValueError(f"{heads} heads cannot share {groups} groups equally.")
        _check("xbc", xbc, torch.float32, (rows, heads * head_dim + 2 * groups * size))
        _check_rows("decay", decay.x, (rows, heads))
        for name, x in (("rate", decay.rate), ("bias", decay.bias), ("skip", skip)):
            _check(name, x, torch.float32, (heads,))
        _check_rows("state", state, (len(state), heads, size, head_dim))
        out = empty((rows, heads * head_dim))
        self._native.state_space(
            xbc.data_ptr(), rows, groups, decay.x.data_ptr(), decay.x.stride(0),
            decay.rate.data_ptr(), decay.bias.data_ptr(), skip.data_ptr(), state.data_ptr(), heads,
            size, head_dim, state.stride(0), _slots(slots, rows), out.data_ptr(),
        )  # fmt: skip
        return out

    def route(
        self,
        logits: Tensor,
        top_k: int,
        scoring: str = "softmax",
        renormalize: bool = False,
        scales: Tensor | None = None,
        correction: Correction | None = None,
    ) -> Routed:
        """As `Ops.route`."""
        rows, count = _dims("logits", logits, 2)
        _check_rows("logits", logits, (rows, count))
        if not 1 <= top_k <= count:
            raise ValueError(f"top_k is {top_k}; there are {count} experts.")
        if scales is not None:
            _check("scales", scales, torch.float32, (count,))
        added, groups, top_groups, best = correction or (None, 1, 1, 2)
        if added is not None:
            _check("added", added, torch.float32, (count,))
            _check_groups(count, groups, top_groups, top_k)
            if best not in (1, 2):
                raise ValueError(f"{best} of a group's experts are added up; it is 1 or 2.")
        ids, weights = empty((rows, top_k), torch.int64), empty((rows, top_k))
        self._native.route(
            logits.data_ptr(), rows, logits.stride(0), count, top_k, getattr(Scoring, scoring),
            renormalize, ids.data_ptr(), weights.data_ptr(), _address(scales), _address(added),
            groups, top_groups, best,
        )  # fmt: skip
        return Routed(ids, weights)

    def take_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """As `Ops.take_rows`; x may be fp32, bf16 or fp16, and the rows are fp32."""
        (rows,) = _dims("index", index, 1)
        _, size = _dims("x", x, 2)
        _check("index", index, torch.int64)
        _check("x", x, None)
        y = empty((rows, size))
        self._native.embed_rows(
            index.data_ptr(), x.data_ptr(), _float_type("x", x), y.data_ptr(), rows, size,
        )  # fmt: skip
        return y

    def first_max(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As `Ops.first_max`."""
        rows, size = _dims("logits", logits, 2)
        _check("logits", logits, torch.float32)
        if size == 0:
            raise ValueError("logits has no columns; there is no largest one.")
        values, ids = empty((rows,)), empty((rows,), torch.int64)
        self._native.argmax(logits.data_ptr(), rows, size, values.data_ptr(), ids.data_ptr())
        return values, ids

    def top_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """As `Ops.top_tokens`; NaN is skipped, and places that stay empty hold -infinity and the
        id -1."""
        rows, size = _dims("logits", logits, 2)
        _check("logits", logits, torch.float32)
        if not 1 <= count <= min(size, MAX_TOP_K):
            return reference.top_tokens(logits, count)
        values = empty((rows, count))
        ids = empty((rows, count), torch.int64)
        self._native.top_k(logits.data_ptr(), rows, size, count, values.data_ptr(), ids.data_ptr())
        return values, ids

    def draw(self, tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
        """As `Ops.draw`."""
        rows, size = _dims("logits", logits, 2)
        _check("logits", logits, torch.float32)
        _check("tokens", tokens, torch.int64, (rows,))
        _check("top", top, torch.float32, (rows,))
        columns = [
            np.ascontiguousarray(column, dtype)
            for column, dtype in zip(params, _DRAW_DTYPES, strict=True)
        ]
        for name, column in zip(DrawParams._fields, columns, strict=True):
            if column.shape != (rows,):
                raise ValueError(f"{name} has shape {column.shape}; it must be {(rows,)}.")
        self._native.draw(
            logits.data_ptr(), rows, size, top.data_ptr(),
            *(column.ctypes.data for column in columns), tokens.data_ptr(),
        )  # fmt: skip

    def mask_logits(self, logits: Tensor, index: Tensor, masks: Tensor) -> None:
        """As `Ops.mask_logits`."""
        rows, size = _dims("logits", logits, 2)
        count, words = _dims("masks", masks, 2)
        _check("logits", logits, torch.float32)
        _check("masks", masks, torch.int32)
        _check("index", index, torch.int64, (count,))
        if size > words * 32:
            raise ValueError(f"masks has {words} words for {size} logits.")
        if count and not (int(index.min()) >= 0 and int(index.max()) < rows):
            raise ValueError(f"index must lie within the {rows} rows of the logits.")
        self._native.mask_logits(
            logits.data_ptr(), size, index.data_ptr(), count, masks.data_ptr(), words
        )


def _check_groups(count: int, groups: int, top_groups: int, top_k: int) -> None:
    if not 1 <= groups <= MAX_GROUPS or count % groups:
        raise ValueError(f"{count} experts cannot lie in {groups} equal groups.")
    if not 1 <= top_groups <= groups or count // groups * top_groups < top_k:
        raise ValueError(f"{top_groups} of {groups} groups have too few experts for {top_k}.")


def _slots(slots: StateSlots, rows: int) -> NativeSlots:
    (reqs,) = _dims("read", slots.read, 1)
    _check("read", slots.read, torch.int32)
    _check("write", slots.write, torch.int32, (rows,))
    _check("query_start", slots.query_start, torch.int32, (reqs + 1,))
    _check("kv_lens", slots.kv_lens, torch.int32, (reqs,))
    return NativeSlots(
        slots.read.data_ptr(), slots.write.data_ptr(), slots.query_start.data_ptr(),
        slots.kv_lens.data_ptr(), reqs,
    )  # fmt: skip


def _float_type(name: str, tensor: Tensor) -> FloatType:
    found = _FLOAT_TYPES.get(tensor.dtype)
    if found is None:
        raise ValueError(f"{name} is {tensor.dtype}; it must be float32, bfloat16 or float16.")
    return found
