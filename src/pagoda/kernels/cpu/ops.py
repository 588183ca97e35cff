"""The native kernels on torch tensors: shapes and dtypes are checked here, addresses passed on."""

import numpy as np
import torch
import torch.nn.functional as F

from pagoda.kernels import cpu
from pagoda.kernels.cpu._native import (
    MAX_KEY_DIM,
    MAX_TOP_K,
    VALUE_DIM_UNIT,
    CacheType,
    FloatType,
    KvCache,
    Native,
    Scoring,
)
from pagoda.kernels.cpu._native import StateSlots as NativeSlots
from pagoda.kernels.cpu.check import check as _check
from pagoda.kernels.cpu.check import check_rows as _check_rows
from pagoda.kernels.cpu.check import dims as _dims
from pagoda.kernels.ref import ops as reference
from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.ref.draw import DrawParams
from pagoda.kernels.ref.kv_cache import head_dim
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor

_FLOAT_TYPES = {
    torch.float32: FloatType.float32,
    torch.bfloat16: FloatType.bfloat16,
    torch.float16: FloatType.float16,
}
_CACHE_TYPES = {
    torch.float32: CacheType.float32,
    torch.bfloat16: CacheType.bfloat16,
    torch.float16: CacheType.float16,
    torch.int8: CacheType.int8,
}
_DRAW_DTYPES = (np.float32, np.int32, np.float64, np.float32, np.uint64, np.int64)
_KEY_BLOCK = 64


class CpuOps:
    """`Ops` on one pool of threads. Activations are contiguous fp32 unless a docstring differs."""

    def __init__(self, native: Native):
        self._native = native

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As `Ops.rms_norm`."""
        if x.dim() != 2:
            return reference.rms_norm(x, weight, eps)
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("weight", weight, torch.float32, (size,))
        y = empty((rows, size))
        self._native.rms_norm(
            x.data_ptr(), 0, weight.data_ptr(), y.data_ptr(), rows, size, eps, 0, 1.0
        )
        return y

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

    def rotary_store(
        self,
        qkv: Tensor,
        heads: int,
        positions: Tensor | None,
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
    ) -> Tensor:
        """Normalize each head of q and k by q_norm and k_norm fp32 [dim] (None: not), rotate both
        in place (cos_sin None: not), and write k and v to their slots of the caches. Returns q
        [tokens, heads, dim], which are columns of qkv.

        qkv [tokens, (heads + 2 * kv_heads) * dim], rows any stride apart; with `values_are_keys`
        it has no v, which is k as it came. With `norm_values` each head of v is normalized, too.
        positions and slot_mapping int64 [tokens]; cos_sin, q_scales and caches as in
        `kernels.ops`.
        """
        kv_heads, dim = v_cache.shape[1], head_dim(v_cache)
        rows, _ = _dims("qkv", qkv, 2)
        parts = heads + kv_heads * (1 if values_are_keys else 2)
        _check_rows("qkv", qkv, (rows, parts * dim))
        _check("slot_mapping", slot_mapping, torch.int64, (rows,))
        if cos_sin is not None or q_scales is not None:
            _check("positions", positions, torch.int64, (rows,))
        rotary_dim = 0
        if cos_sin is not None:
            _, rotary_dim = _dims("cos_sin", cos_sin, 2)
            _check("cos_sin", cos_sin, torch.float32)
            if rotary_dim % 2 or rotary_dim > dim:
                raise ValueError(f"cos_sin has {rotary_dim} columns; heads of {dim} need an even "
                                 f"number up to {dim}.")  # fmt: skip
        if q_scales is not None:
            _check("q_scales", q_scales, torch.float32)
        for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
            if weight is not None:
                _check(name, weight, torch.float32, (dim,))
        self._native.rotary_store(
            qkv.data_ptr(), rows, qkv.stride(0), heads, _cache(k_cache, v_cache),
            slot_mapping.data_ptr(), _address(positions), _address(cos_sin), rotary_dim,
            _address(q_norm), _address(k_norm), eps, _address(q_scales), norm_values,
            values_are_keys,
        )  # fmt: skip
        out: Tensor = qkv[:, : heads * dim].unflatten(-1, (heads, dim))
        return out

    def paged_attention(
        self,
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
        both_ways: bool = False,
    ) -> Tensor:
        """As `AttentionBackend.attend`; q [tokens, heads, dim] may be rows of qkv. With
        `both_ways` every query sees all of its request's keys."""
        rows, heads, dim = _dims("q", q, 3)
        kv_heads = v_cache.shape[1]
        _check_rows("q", q, (rows, heads, head_dim(v_cache)))
        if heads % kv_heads:
            raise ValueError(f"{heads} heads cannot share {kv_heads} KV heads in equal groups.")
        reqs, max_blocks = _dims("block_table", block_table, 2)
        _check_rows("block_table", block_table, (reqs, max_blocks), torch.int32)
        _check("query_start", query_start, torch.int32, (reqs + 1,))
        _check("kv_lens", kv_lens, torch.int32, (reqs,))
        if sinks is not None:
            _check("sinks", sinks, torch.float32, (heads,))
        if sees_until is not None:
            _check("sees_until", sees_until, torch.int32, (rows,))
        cache = _cache(k_cache, v_cache)
        out = empty((rows, heads, dim))
        self._native.paged_attention(
            q.data_ptr(), rows, q.stride(0), heads, cache, block_table.data_ptr(),
            block_table.stride(0), query_start.data_ptr(), kv_lens.data_ptr(), reqs,
            max_blocks * v_cache.shape[2], scale, window or 0, chunked and window is not None,
            _address(sinks), out.data_ptr(), both_ways, _address(sees_until),
        )  # fmt: skip
        return out

    def encoder_attention(
        self, q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
    ) -> Tensor:
        """As `Ops.encoder_attention`; q may be rows of qkv. Keys lie in a cache that lasts for this
        call: in blocks where there is one text (a picture), else each alone."""
        if q.shape[-1] % 2:
            return reference.encoder_attention(q, k, v, query_start, scale=scale)
        lens = query_start.diff()
        if len(lens) == 1:
            # 1.5 times as fast as keys alone (2048 tokens, 16 heads of 64), with the same bits.
            pad = -len(k) % _KEY_BLOCK
            blocks = [F.pad(x, (0, 0, 0, 0, 0, pad)).unflatten(0, (-1, _KEY_BLOCK)) for x in (k, v)]
            k_cache, v_cache = blocks[0].permute(0, 2, 3, 1), blocks[1].transpose(1, 2)
            k_cache = k_cache.contiguous().transpose(2, 3)
            table = torch.arange(len(k_cache), dtype=torch.int32)[None]
        else:
            longest = int(lens.max()) if len(lens) else 0
            table = query_start[:-1, None] + torch.arange(longest, dtype=torch.int32)
            k_cache, v_cache = k.unsqueeze(2).contiguous(), v.unsqueeze(2)
        return self.paged_attention(q, k_cache, v_cache.contiguous(), table, query_start, lens,
                                    scale=scale, both_ways=True)  # fmt: skip

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
        self._native.activate_and_mul(
            x.data_ptr(), y.data_ptr(), rows, width // 2, cpu.activation(kind)
        )
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

    def causal_conv(self, x: Tensor, weight: Tensor, state: Tensor, slots: StateSlots) -> Tensor:
        """As `Ops.causal_conv`."""
        rows, channels = _dims("x", x, 2)
        width, _ = _dims("weight", weight, 2)
        _check_rows("x", x, (rows, channels))
        _check("weight", weight, torch.float32, (width, channels))
        _check_rows("state", state, (len(state), width - 1, channels))
        y = empty((rows, channels))
        self._native.causal_conv(
            x.data_ptr(), rows, x.stride(0), weight.data_ptr(), width, channels, state.data_ptr(),
            state.stride(0), _slots(slots), y.data_ptr(),
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
            state.data_ptr(), heads, key_dim, value_dim, state.stride(0), _slots(slots),
            out.data_ptr(),
        )  # fmt: skip
        return out

    def route(
        self,
        logits: Tensor,
        top_k: int,
        scoring: str = "softmax",
        renormalize: bool = False,
        scales: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `Ops.route`."""
        rows, count = _dims("logits", logits, 2)
        _check_rows("logits", logits, (rows, count))
        if not 1 <= top_k <= count:
            raise ValueError(f"top_k is {top_k}; there are {count} experts.")
        if scales is not None:
            _check("scales", scales, torch.float32, (count,))
        ids, weights = empty((rows, top_k), torch.int64), empty((rows, top_k))
        self._native.route(
            logits.data_ptr(), rows, logits.stride(0), count, top_k, getattr(Scoring, scoring),
            renormalize, ids.data_ptr(), weights.data_ptr(), _address(scales),
        )  # fmt: skip
        return ids, weights

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


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _cache(k_cache: Tensor, v_cache: Tensor) -> KvCache:
    _, kv_heads, block_size, row = _dims("v_cache", v_cache, 4)
    dim = head_dim(v_cache)
    _check_rows("v_cache", v_cache, v_cache.shape, k_cache.dtype)
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"k_cache is {list(k_cache.shape)} and v_cache {list(v_cache.shape)}.")
    heads_apart = kv_heads == 1 or k_cache.stride(1) == block_size * row
    # Of one token there is but one way.
    inner = k_cache.stride()[2:] == (1, block_size) or (block_size == 1 and k_cache.stride(3) == 1)
    if not (heads_apart and inner):
        raise ValueError("k_cache must lie dimension by dimension.")
    stride = v_cache.stride(0) * v_cache.element_size()
    if k_cache.stride(0) * k_cache.element_size() != stride:
        raise ValueError("k_cache and v_cache have blocks at different distances.")
    if dim % 2:
        raise ValueError(f"v_cache has heads of {dim}; the native kernels need an even size.")
    cache_type = _CACHE_TYPES.get(k_cache.dtype)
    if cache_type is None:
        raise ValueError(f"k_cache is {k_cache.dtype}; it must be one of {list(_CACHE_TYPES)}.")
    return KvCache(
        k_cache.data_ptr(), v_cache.data_ptr(), cache_type, stride, kv_heads, block_size, dim
    )


def _slots(slots: StateSlots) -> NativeSlots:
    (reqs,) = _dims("read", slots.read, 1)
    _check("read", slots.read, torch.int32)
    _check("write", slots.write, torch.int32, (reqs,))
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
