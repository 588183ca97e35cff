"""Attention on torch tensors by the native kernels, over a paged cache and without one."""

import torch
import torch.nn.functional as F

from pagoda.kernels.cpu._native import CacheType, KvCache, Native
from pagoda.kernels.cpu.arguments import address as _address
from pagoda.kernels.cpu.arguments import check as _check
from pagoda.kernels.cpu.arguments import check_rows as _check_rows
from pagoda.kernels.cpu.arguments import dims as _dims
from pagoda.kernels.ref import ops as reference
from pagoda.kernels.ref.kv_cache import head_dim
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor

_CACHE_TYPES = {
    torch.float32: CacheType.float32,
    torch.bfloat16: CacheType.bfloat16,
    torch.float16: CacheType.float16,
    torch.int8: CacheType.int8,
    torch.uint8: CacheType.q4_0,
}
_KEY_BLOCK = 64


class CpuAttention:
    """The part of `CpuOps` that attends. Keys lie dimension by dimension."""

    _native: Native

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
        rotary_dim = _rotary_dim(cos_sin, dim)
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

    def rotate(
        self,
        q: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        dim: int,
        norm: tuple[Tensor, float] | None = None,
        q_scales: Tensor | None = None,
    ) -> Tensor:
        """As `AttentionBackend.rotate`, in place: what `rotary_store` does without heads of k and
        v; rows of q may lie any stride apart, and positions are int64 [tokens]."""
        rows, width = _dims("q", q, 2)
        if width % dim or dim % 2:
            raise ValueError(f"q has {width} columns, which must be heads of {dim}, an even size.")
        _check_rows("q", q, (rows, width))
        _check("positions", positions, torch.int64, (rows,))
        if q_scales is not None:
            _check("q_scales", q_scales, torch.float32)
        weight, eps = norm or (None, 0.0)
        if weight is not None:
            _check("norm", weight, torch.float32, (dim,))
        nothing = KvCache(0, 0, CacheType.float32, 0, 0, 1, dim)
        self._native.rotary_store(
            q.data_ptr(), rows, q.stride(0), width // dim, nothing, positions.data_ptr(),
            positions.data_ptr(), _address(cos_sin), _rotary_dim(cos_sin, dim), _address(weight),
            0, eps, _address(q_scales), False, False,
        )  # fmt: skip
        out: Tensor = q.unflatten(-1, (width // dim, dim))
        return out

    def rotary(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `Ops.rotary`, in place; rows and heads of q and k may lie any distance apart."""
        _check("positions", positions, torch.int64, (len(q),))
        for name, x in (("q", q), ("k", k)):
            _, heads, dim = _dims(name, x, 3)
            _check_heads(name, x, (len(q), heads, dim))
            self._native.rotary(
                x.data_ptr(), len(x), x.stride(0), x.stride(1), heads, positions.data_ptr(),
                cos_sin.data_ptr(), _rotary_dim(cos_sin, dim),
            )  # fmt: skip
        return q, k

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
        cap: float | None = None,
        sees_until: Tensor | None = None,
        chosen: Tensor | None = None,
        host_query_start: object = None,
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
        if chosen is not None:
            _check("chosen", chosen, torch.int32, (rows, chosen.shape[-1]))
        cache = _cache(k_cache, v_cache)
        out = empty((rows, heads, dim))
        self._native.paged_attention(
            q.data_ptr(), rows, q.stride(0), heads, cache, block_table.data_ptr(),
            block_table.stride(0), query_start.data_ptr(), kv_lens.data_ptr(), reqs,
            max_blocks * v_cache.shape[2], scale, window or 0, chunked and window is not None,
            _address(sinks), out.data_ptr(), both_ways, _address(sees_until), cap or 0.0,
            _address(chosen), 0 if chosen is None else chosen.shape[1],
        )  # fmt: skip
        return out

    def encoder_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start: Tensor,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """As `Ops.encoder_attention`; q may be rows of qkv. Keys lie in a cache that lasts for this
        call: in blocks where there is one text, else each alone."""
        if q.shape[-1] % 2:
            return reference.encoder_attention(q, k, v, query_start, scale=scale, window=window)
        lens = query_start.diff()
        sees_until = None if window is None else _ends_of_sight(query_start, window)
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
                                    scale=scale, window=window, sees_until=sees_until,
                                    both_ways=window is None)  # fmt: skip

    def choose_keys(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Tensor,
        block_table: Tensor,
        query_start: Tensor,
        kv_lens: Tensor,
        count: int,
    ) -> Tensor:
        """As `Ops.choose_keys`; q may be rows of wider ones."""
        rows, heads, dim = _dims("q", q, 3)
        _check_rows("q", q, (rows, heads, keys.shape[-1]))
        _check_rows("weights", weights, (rows, heads))
        reqs, max_blocks = _dims("block_table", block_table, 2)
        _check_rows("block_table", block_table, (reqs, max_blocks), torch.int32)
        _check("query_start", query_start, torch.int32, (reqs + 1,))
        _check("kv_lens", kv_lens, torch.int32, (reqs,))
        if keys.shape[1] != 1:
            raise ValueError(f"Index keys have one head, and not {keys.shape[1]}.")
        chosen = empty((rows, count), torch.int32)
        self._native.choose_keys(
            q.data_ptr(), rows, q.stride(0), weights.data_ptr(), weights.stride(0), heads,
            _cache(keys, keys), block_table.data_ptr(), block_table.stride(0),
            query_start.data_ptr(), kv_lens.data_ptr(), reqs, max_blocks * keys.shape[2], count,
            chosen.data_ptr(),
        )  # fmt: skip
        return chosen

    def patch_attention(
        self, q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
    ) -> Tensor:
        """As `Ops.patch_attention`; rows and heads of q, k and v may lie any distance apart."""
        rows, heads, dim = _dims("q", q, 3)
        for name, x in (("q", q), ("k", k), ("v", v)):
            _check_heads(name, x, (rows, heads, dim))
        (ends,) = _dims("query_start", query_start, 1)
        _check("query_start", query_start, torch.int32)
        if query_start[0] != 0 or query_start[-1] != rows or (query_start.diff() < 0).any():
            starts = query_start.tolist()
            raise ValueError(f"query_start is {starts}; it must rise from 0 to {rows}.")
        # Head by head: rows of all heads, some KB apart, would share a few lines of a core's cache.
        k, v = (x.transpose(0, 1).contiguous() for x in (k, v))
        out = empty((rows, heads, dim))
        self._native.patch_attention(
            q.data_ptr(), q.stride(0), q.stride(1), k.data_ptr(), v.data_ptr(), rows, heads, dim,
            query_start.data_ptr(), ends - 1, scale, out.data_ptr(),
        )  # fmt: skip
        return out


def _ends_of_sight(query_start: Tensor, window: int) -> Tensor:
    """Behind the last of its text's tokens that each one sees: int32 [tokens]."""
    lens = query_start.diff()
    starts, ends = (x.repeat_interleave(lens) for x in (query_start[:-1], lens))
    places = torch.arange(len(starts), dtype=torch.int32) - starts
    return torch.minimum(places + window, ends)


def _rotary_dim(cos_sin: Tensor | None, dim: int) -> int:
    """How many of a head's dimensions are rotated."""
    if cos_sin is None:
        return 0
    _, rotary_dim = _dims("cos_sin", cos_sin, 2)
    _check("cos_sin", cos_sin, torch.float32)
    if rotary_dim % 2 or rotary_dim > dim:
        raise ValueError(
            f"cos_sin has {rotary_dim} columns; heads of {dim} need an even number up to {dim}."
        )
    return rotary_dim


def _check_heads(name: str, tensor: Tensor, shape: tuple[int, int, int]) -> None:
    """fp32 [rows, heads, dim] whose heads are contiguous."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}.")
    _check(name, tensor[0, 0] if tensor.numel() else tensor, torch.float32)


def _cache(k_cache: Tensor, v_cache: Tensor) -> KvCache:
    _, kv_heads, block_size, row = _dims("v_cache", v_cache, 4)
    dim = head_dim(v_cache)
    if v_cache is not k_cache:
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
