"""Attention over a paged KV cache; its strides say how it is laid out (`kv_cache`)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pagoda.kernels.ref.kv_cache import KVScales, decode, head_dim, store, take
from pagoda.kernels.ref.norm import rms_norm
from pagoda.kernels.ref.rope import rotary

Tensor = torch.Tensor

# Bounds on temporaries, so that a long context costs time and not memory: elements of K (and as
# many of V) gathered at once, and elements of one mask. Smaller masks also skip more of the keys
# that lie behind their queries (2048 tokens: 64 ms, against 80 ms with 1 << 21), but fewer than
# 64 queries at a time would read the keys of a long context too often.
_GATHER_ELEMENTS = 1 << 23
_MASK_ELEMENTS = 1 << 19
_MIN_QUERIES = 64
# One-token requests share a batch of at most so many elements of K. On a CPU it pays below some
# 100 tokens only (16 requests of 64 tokens: 0.47 ms against 0.71 ms one by one; of 4096: 15 ms
# against 7.6 ms), on a GPU every launch saved counts.
_BATCH_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
# ... and while padding to the longest adds at most this much.
_PADDING = 1.25


def rotary_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    norms: tuple[Tensor, Tensor, float, bool] | None,
    q_scales: Tensor | None,
    values_are_keys: bool,
    kv_scales: KVScales | None = None,
) -> Tensor:
    """As `AttentionBackend.store`, in torch; caches may lie in either layout."""
    kv_heads, dim = v_cache.shape[1], head_dim(v_cache)
    parts: Tensor = qkv.unflatten(-1, (-1, dim))
    q, k, v = normed_and_rotated(parts, kv_heads, positions, cos_sin, norms, values_are_keys)
    if q_scales is not None:
        q = (q * q_scales[positions, None, None]).to(q.dtype)
    if kv_scales is not None:
        k, v = k * (1 / kv_scales.k[:, None]), v * (1 / kv_scales.v[:, None])
    store_kv(k, v, k_cache, v_cache, slot_mapping)
    return q


def rotate(
    q: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    dim: int,
    norm: tuple[Tensor, float] | None,
    q_scales: Tensor | None,
) -> Tensor:
    """As `AttentionBackend.rotate`, in torch."""
    heads: Tensor = q.unflatten(-1, (-1, dim))
    if norm is not None:
        heads = rms_norm(heads, *norm)
    if cos_sin is not None:
        heads, _ = rotary(heads, heads[:, :0], positions, cos_sin)
    if q_scales is not None:
        heads = (heads * q_scales[positions, None, None]).to(q.dtype)
    return heads


def normed_and_rotated(
    heads: Tensor,
    kv_heads: int,
    positions: Tensor,
    cos_sin: Tensor | None,
    norms: tuple[Tensor, Tensor, float, bool] | None,
    values_are_keys: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """q [tokens, heads, dim], k and v [tokens, kv_heads, dim] of what `AttentionBackend.store`
    takes, [tokens, all heads, dim]."""
    num_heads = heads.shape[1] - kv_heads * (1 if values_are_keys else 2)
    q, k, v = heads[:, :num_heads], heads[:, num_heads:][:, :kv_heads], heads[:, -kv_heads:]
    if norms is not None:
        q_weight, k_weight, eps, values = norms
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
        v = rms_norm(v, torch.ones_like(k_weight), eps) if values else v
    if cos_sin is not None:
        q, k = rotary(q, k, positions, cos_sin)
    return q, k, v


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """K and V [tokens, kv_heads, head_dim] into the caches at int64 slot_mapping [tokens]."""
    block_size = v_cache.shape[2]
    blocks = torch.div(slot_mapping, block_size, rounding_mode="floor")
    offsets = slot_mapping - blocks * block_size
    store(k, k_cache, blocks, offsets)
    if v_cache is not k_cache:
        store(v, v_cache, blocks, offsets)


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
    host_query_start: object = None,
) -> Tensor:
    """As `AttentionBackend.attend`, in torch; caches may lie in either layout."""
    if kv_scales is not None:
        group = q.shape[1] // k_cache.shape[1]
        k_scales, v_scales = (scales.repeat_interleave(group)[:, None] for scales in kv_scales)
        unscaled = paged_attention(
            (q * k_scales).to(q.dtype), k_cache, v_cache, block_table, query_start, kv_lens,
            scale=scale, window=window, chunked=chunked, sinks=sinks, cap=cap,
            sees_until=sees_until,
        )  # fmt: skip
        return (unscaled * v_scales).to(q.dtype)
    out = torch.zeros_like(q)
    cache = _Cache(k_cache, v_cache, q.dtype, scale, window, chunked, sinks, cap)
    starts, lens = query_start.tolist(), kv_lens.tolist()
    singles = []
    for req, kv_len in enumerate(lens):
        begin, end = starts[req], starts[req + 1]
        if chosen is not None and kv_len > chosen.shape[1]:
            # The first of the queries that see what is chosen for them.
            first = max(begin, end - (kv_len - chosen.shape[1]))
            if first > begin:
                seen_len = kv_len - (end - first)
                out[begin:first] = cache.attend(q[begin:first], block_table[req], seen_len)
            out[first:end] = cache.attend_chosen(q[first:end], chosen[first:end])
        elif end - begin == 1:
            singles.append(req)
        elif end > begin:
            seen = None if sees_until is None else sees_until[begin:end]
            out[begin:end] = cache.attend(q[begin:end], block_table[req], kv_len, seen)
    for reqs in cache.batches(singles, lens):
        rows = [starts[req] for req in reqs]
        if len(reqs) == 1:
            row = rows[0]
            out[row : row + 1] = cache.attend(q[row : row + 1], block_table[reqs[0]], lens[reqs[0]])
        else:
            index = torch.tensor(rows, device=q.device)
            table = block_table[torch.tensor(reqs, device=q.device)]
            out[index] = cache.attend_batch(q[index], table, [lens[req] for req in reqs])
    return out


@dataclass
class _Cache:
    """One layer's cache, and how it is attended to."""

    k: Tensor
    v: Tensor
    dtype: torch.dtype
    scale: float
    window: int | None
    chunked: bool
    sinks: Tensor | None
    cap: float | None

    def batches(self, reqs: list[int], lens: list[int]) -> list[list[int]]:
        """Split one-token requests into batches of similar length and bounded size."""
        per_token = self.v.shape[1] * self.v.shape[3]
        batches: list[list[int]] = []
        room = 0
        shortest = 0.0
        for req in sorted(reqs, key=lambda req: self._span(1, lens[req]), reverse=True):
            span = self._span(1, lens[req])
            if not batches or len(batches[-1]) >= room or span < shortest:
                batches.append([])
                room = _BATCH_ELEMENTS[self.k.device.type] // max(1, per_token * span)
                shortest = (span - self.v.shape[2]) / _PADDING
            batches[-1].append(req)
        return batches

    def attend(
        self, q: Tensor, blocks: Tensor, kv_len: int, sees_until: Tensor | None = None
    ) -> Tensor:
        """Queries [tokens, heads, dim] are the last `tokens` of the request's `kv_len`."""
        num_kv_heads = self.k.shape[1]
        group = q.shape[1] // num_kv_heads
        step = max(1, min(num_kv_heads, _GATHER_ELEMENTS // max(1, kv_len * q.shape[2])))
        parts = []
        for head in range(0, num_kv_heads, step):
            queries = q[:, head * group : (head + step) * group].transpose(0, 1)
            heads = slice(head, head + step)
            parts.append(self._attend_heads(queries, blocks, kv_len, heads, sees_until))
        return torch.cat(parts).transpose(0, 1)

    def _attend_heads(
        self, q: Tensor, blocks: Tensor, kv_len: int, heads: slice, sees_until: Tensor | None
    ) -> Tensor:
        """`attend` for q [heads, tokens, dim] and the KV heads they share."""
        num_tokens, block_size = q.shape[1], self.v.shape[2]
        first_block = (kv_len - self._span(num_tokens, kv_len)) // block_size
        base = first_block * block_size
        used = blocks[first_block : -(-kv_len // block_size)]
        # Cut at kv_len: what lies behind it in the last block may be anything, NaN included.
        k, v = (
            rows.transpose(0, 1).flatten(1, 2)[:, : kv_len - base]
            for rows in self._gather(used, heads)
        )
        k, v = decode(k, self.dtype), decode(v, self.dtype)
        if num_tokens == 1:
            start = kv_len - self._span(1, kv_len) - base
            grouped = q.reshape(k.shape[0], -1, q.shape[2])
            sinks = self._sinks(heads, grouped.shape[:2])
            return self._sdpa(grouped, k[:, start:], v[:, start:], None, sinks).reshape(q.shape)
        step = max(_MIN_QUERIES, _MASK_ELEMENTS // k.shape[1])
        sinks = self._sinks(heads, (q.shape[0], 1))
        parts = []
        for begin in range(0, num_tokens, step):
            end = min(begin + step, num_tokens)
            # Positions of these queries, and of the keys any of them sees.
            last = kv_len - num_tokens + end
            query_at = torch.arange(last - (end - begin), last, device=q.device)
            start = last - self._span(end - begin, last)
            ends = query_at + 1
            if sees_until is not None:
                ends = sees_until[begin:end]
                last = int(ends[-1])
            key_at = torch.arange(start, last, device=q.device)
            mask = self._visible(query_at[:, None], key_at[None], ends[:, None])
            seen = (k[:, start - base : last - base], v[:, start - base : last - base])
            parts.append(self._sdpa(q[:, begin:end], *seen, mask, sinks))
        return torch.cat(parts, dim=1)

    def attend_batch(self, q: Tensor, table: Tensor, lens: list[int]) -> Tensor:
        """One query [reqs, heads, dim] per request, padded to the longest."""
        num_reqs = len(q)
        block_size, device = self.v.shape[2], q.device
        ends = torch.tensor(lens, device=device)
        firsts = [(kv_len - self._span(1, kv_len)) // block_size for kv_len in lens]
        counts = [
            -(-kv_len // block_size) - first for kv_len, first in zip(lens, firsts, strict=True)
        ]
        starts = torch.tensor(firsts, device=device)
        index = torch.arange(max(counts), device=device) + starts[:, None]
        offsets = torch.arange(block_size, device=device)
        key_at = (index[:, :, None] * block_size + offsets).flatten(1)
        # Behind a request's end the table names any block: what is read there is masked.
        used = table.gather(1, index.clamp(max=table.shape[1] - 1))
        mask = self._visible((ends - 1)[:, None], key_at, ends[:, None])
        gathered = (
            rows.unflatten(0, used.shape).transpose(1, 2).flatten(2, 3)
            for rows in self._gather(used.flatten(), slice(None))
        )
        hidden = ~mask[:, None, :, None]
        k, v = (decode(rows, self.dtype).masked_fill_(hidden, 0) for rows in gathered)
        grouped = q.reshape(num_reqs, k.shape[1], -1, q.shape[2])
        sinks = self._sinks(slice(None), grouped.shape[1:3])
        return self._sdpa(grouped, k, v, mask[:, None, None], sinks).reshape(q.shape)

    def attend_chosen(self, q: Tensor, slots: Tensor) -> Tensor:
        """Queries [tokens, heads, dim], each to keys of its own at int32 slots [tokens, count]."""
        block_size = self.v.shape[2]
        step = max(1, _GATHER_ELEMENTS // max(1, slots.shape[1] * self.v.shape[1] * q.shape[2]))
        parts = []
        for rows, some in zip(q.split(step), slots.long().split(step), strict=True):
            blocks, offsets = some // block_size, some % block_size
            # [tokens, kv_heads, count, dim] each
            k, v = (
                decode(cache[blocks, :, offsets].transpose(1, 2), self.dtype)
                for cache in (self.k, self.v)
            )
            grouped = rows.reshape(len(rows), k.shape[1], -1, q.shape[2])
            parts.append(self._sdpa(grouped, k, v, None).reshape(rows.shape))
        return torch.cat(parts)

    def _gather(self, blocks: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        """K and V of blocks [n], each [n, heads, block_size, row]."""
        return take(self.k, blocks, heads), take(self.v, blocks, heads)

    def _span(self, num_tokens: int, kv_len: int) -> int:
        """Keys that the last `num_tokens` queries of `kv_len` see, from the first one seen on."""
        if self.window is None:
            return kv_len
        if self.chunked:
            first = kv_len - num_tokens
            return num_tokens + first % self.window
        return min(kv_len, self.window + num_tokens - 1)

    def _visible(self, query_at: Tensor, key_at: Tensor, ends: Tensor) -> Tensor:
        mask = key_at < ends
        if self.window is None:
            return mask
        if self.chunked:
            return mask & (key_at >= query_at - query_at % self.window)
        return mask & (key_at > query_at - self.window)

    def _sinks(self, kv_heads: slice, shape: tuple[int, ...]) -> Tensor | None:
        """Those of the heads that share `kv_heads`, as `shape` [heads, rows] with them has it."""
        if self.sinks is None:
            return None
        return self.sinks.view(self.v.shape[1], -1)[kv_heads].reshape(*shape, 1)

    def _sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """q [..., heads, tokens, dim]; heads share KV heads in equal groups; sinks broadcast to
        [..., heads, tokens, 1]."""
        if sinks is not None or self.cap is not None:
            return self._in_steps(q, k, v, mask, sinks)
        if q.dim() == 3:
            return self._sdpa(q[None], k[None], v[None], mask)[0]
        return F.scaled_dot_product_attention(
            q, k, v, mask, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    def _in_steps(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None
    ) -> Tensor:
        """What torch's own function has no place for; sums in fp32, as that has them."""
        group = q.shape[-3] // k.shape[-3]
        k, v = (x.float().repeat_interleave(group, -3) for x in (k, v))
        logits = (q.float() * self.scale) @ k.transpose(-1, -2)
        if self.cap is not None:
            logits = self.cap * (logits / self.cap).tanh()
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        top = logits.amax(-1, keepdim=True)
        if sinks is not None:
            top = torch.maximum(top, sinks)
        weights = (logits - top).exp()
        total = weights.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + (sinks - top).exp()
        return (weights @ v / total).to(q.dtype)
