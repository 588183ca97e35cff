"""Products, experts and attention at the sizes of real models; small ones where all is played."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import ops
from pagoda.kernels.ref import kv_cache
from pagoda.kernels.triton import attention, norm
from pagoda.kernels.triton.products import experts, gemm, routing, scaled
from pagoda.kernels.triton.products.matrix import GpuMatrix
from tests.kernels.triton.quantized import random_raw

if TYPE_CHECKING:
    from pagoda.runtime.device import Device

Tensor = torch.Tensor

_BLOCK = 64
_FEW = 128
"""Queries of a request that are compared."""
_CHUNK = 1 << 27


@dataclass(frozen=True)
class Made:
    """Tensors that are there, and what to do with them."""

    compute: Callable[[], Tensor]
    reference: Callable[[], tuple[Tensor, slice]] | None
    """The rows that are compared, in fp32, and which these are."""
    nbytes: float
    """That must be read and written."""
    flops: float


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Made]
    layers: int = 1
    """How many of a model's do this in a step."""


def device(play: bool) -> "Device":
    from pagoda.runtime.device import make_device

    return make_device("cpu" if play else "cuda")


def all_cases(play: bool) -> list[Case]:
    """Those that may crash last: experts, then attention of long contexts."""
    where = "cpu" if play else "cuda"
    if play:
        found = [_linear(where, "Q4_K", tokens, 64, 256) for tokens in (1, 16)]
        found += [_experts(where, "played", "MXFP4", 2, (4, 2, 64, 64), 1)]
        found += [_attend(where, 2, 70, (4, 2, 32)), _attend(where, 2, 40, (4, 2, 32), window=16)]
        return [*found, _add_norm(where, 4, 256)]
    found = [_add_norm(where, tokens, 4096) for tokens in (1, 8192)]
    for storage in ("Q4_K", "Q6_K", "UINT4", "INT4", "FP8", "MXFP4", "FP4"):
        every = storage in ("Q4_K", "UINT4", "FP8")
        for tokens in (1, 16, 64, 256, 2048) if every else (1, 64):
            found.append(_linear(where, storage, tokens, 28672, 4096))
    found += [_linear(where, storage, 1, 6144, 4096) for storage in ("Q4_K", "FP8")]
    found += [_attend(where, *sizes, (32, 8, 128)) for sizes in _DECODES]
    found += [
        _attend(where, 64, 4096, (64, 8, 64), window=128),
        _attend(where, 64, 4096, (16, 2, 512)),
        _attend(where, 64, 4096, (24, 4, 256)),
        _attend(where, 1, 8192, (32, 8, 128), queries=8192),
        _attend(where, 1, 2048, (16, 8, 256), queries=2048),
    ]
    for tokens in (1, 16, 64, 256, 2048):
        found.append(_experts(where, "gpt-oss", "MXFP4", tokens, (32, 4, 2880, 2880), 24))
        found.append(_experts(where, "Qwen3-30B-A3B", "FP8", tokens, (128, 8, 768, 2048), 48))
    return found


_DECODES = ((1, 1024), (1, 32768), (64, 1024), (256, 1024), (64, 8192))
"""Requests, and the context of each."""


def error(out: Tensor, reference: tuple[Tensor, slice]) -> float:
    """How far compared rows differ, relative to their size; infinite where any is no number."""
    want, part = reference
    got = out[part].float()
    found = ((got - want).norm() / want.norm()).item()
    return found if torch.isfinite(got).all() else float("inf")


def seconds(work: Callable[[], object], play: bool) -> float:
    """The median of a call's on the GPU: captured, for the host takes longer to launch a kernel
    than many a kernel runs."""
    if play:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    import triton.testing

    # It launches on a stream of its own, which does not wait for what has made the tensors.
    torch.cuda.synchronize()
    return float(triton.testing.do_bench_cudagraph(work, rep=40, return_mode="median")) / 1e3


def synchronize(out: Tensor) -> None:
    if out.is_cuda:
        torch.cuda.synchronize()


def forget() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def context_is_lost(fault: str) -> bool:
    """Whether nothing more can be computed in this process."""
    return "CUDA error" in fault or "illegal memory access" in fault


def _dtype(where: str) -> torch.dtype:
    """The type of activations. Triton's interpreter knows no products of bfloat16."""
    return torch.float32 if where == "cpu" else torch.bfloat16


def _attend(
    where: str,
    batch: int,
    context: int,
    shape: tuple[int, int, int],
    queries: int = 1,
    window: int | None = None,
) -> Case:
    """Heads, KV heads and their size."""
    heads, kv_heads, dim = shape
    kind = "decode" if queries == 1 else "prompt"
    seen_by = f", window {window}" if window else ""
    name = f"attention, {kind} of {batch} x {context}, {heads}/{kv_heads} x {dim}{seen_by}"

    def make() -> Made:
        per_request = -(-context // _BLOCK)
        size = kv_heads * _BLOCK * dim
        rows = torch.randn(2, batch * per_request + 1, size, device=where).to(_dtype(where))
        layout = KVLayout("tokens", _BLOCK)
        k, v = kv_cache.views(rows[0], rows[1], layout, kv_heads)
        table = (1 + torch.randperm(batch * per_request, device=where)).int()
        table = table.view(batch, per_request)
        lens = torch.full((batch,), context, device=where, dtype=torch.int32)
        starts = (torch.arange(batch + 1, device=where) * queries).int()
        q = torch.randn(batch * queries, heads, dim, device=where).to(_dtype(where))

        def compute() -> Tensor:
            return attention.paged_attention(
                q, k, v, table, starts, lens, scale=dim**-0.5, window=window
            )

        def reference() -> tuple[Tensor, slice]:
            few = min(queries, _FEW)
            keys, values = (
                x[table[-1].long()].transpose(0, 1).reshape(kv_heads, -1, dim)[:, :context]
                .float().repeat_interleave(heads // kv_heads, 0) for x in (k, v)
            )  # fmt: skip
            at = torch.arange(context - few, context, device=where)[:, None]
            key = torch.arange(context, device=where)[None]
            mask = (key <= at) & ((key > at - window) if window else (key >= 0))
            attended = torch.nn.functional.scaled_dot_product_attention(
                q[-few:].float().transpose(0, 1), keys, values, mask[None]
            )
            return attended.transpose(0, 1), slice(-few, None)

        seen = min(context, window or context)
        pairs = batch * queries * (seen if queries == 1 else context - queries / 2)
        return Made(compute, reference, batch * seen * kv_heads * dim * 4, 4 * pairs * heads * dim)

    return Case(name, make, 32)


def _matrix(where: str, storage: str, rows: int, columns: int) -> GpuMatrix:
    """Random; fp8 with a scale for each block of 128 columns, as most is published."""
    matrix = GpuMatrix(storage, rows, columns, where)
    step = max(1, _CHUNK // columns)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        matrix.load(first, random_raw(storage, count, columns, seed=first))
    if storage == "FP8" and matrix.scales is not None:
        matrix.scales = matrix.scales[::4].contiguous()
        matrix.layout = replace(matrix.layout, group=128)
    return matrix


def _linear(where: str, storage: str, tokens: int, rows: int, columns: int) -> Case:
    def make() -> Made:
        matrix = _matrix(where, storage, rows, columns)
        x = torch.randn(tokens, columns, device=where).to(_dtype(where))

        def reference() -> tuple[Tensor, slice]:
            decoded = gemm.decode(matrix, torch.float32, 0, rows)
            # One token keeps its own precision.
            rounds = tokens > 1 and scaled.declines(x, matrix, x.dtype) is None
            given = _rounded(x.float()) if rounds else x.float()
            return given @ decoded.t(), slice(None)

        moved = matrix.nbytes + 2 * tokens * (rows + columns)
        return Made(lambda: gemm.matmul(x, [matrix]), reference, moved, 2 * tokens * rows * columns)

    return Case(f"linear {storage}, {tokens} x {columns} x {rows}", make, 32)


def _rounded(x: Tensor) -> Tensor:
    """To fp8, with a scale for each `scaled.GROUP` columns of x [tokens, columns]."""
    groups = x.unflatten(1, (-1, scaled.GROUP))
    scales = groups.abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return ((groups / scales).to(torch.float8_e4m3fn).float() * scales).flatten(1)


def _experts(
    where: str, model: str, storage: str, tokens: int, sizes: tuple[int, int, int, int], layers: int
) -> Case:
    """Experts, those of a token, their width, and the model's."""
    count, top, size, hidden = sizes

    def make() -> Made:
        gate, up, down = (
            _matrix(where, storage, count * rows, columns)
            for rows, columns in ((size, hidden), (size, hidden), (hidden, size))
        )
        rising = ops.PackedExperts((gate, up), size, count, None)
        falling = ops.PackedExperts((down,), hidden, count, None)
        x = torch.randn(tokens, hidden, device=where).to(_dtype(where)) * 0.05
        logits = torch.randn(tokens, count, device=where).to(_dtype(where))
        routed = routing.route(logits, top, "softmax", True)
        ids, weights, _ = routed

        def compute() -> Tensor:
            return experts.mix(x, routed, rising, falling, ops.Gating())

        def reference() -> tuple[Tensor, slice]:
            return _one_by_one(x, ids, weights, (gate, up, down), (size, hidden)), slice(None)

        met = ids.unique().numel() / count
        nbytes = met * sum(one.nbytes for one in (gate, up, down))
        return Made(compute, reference, nbytes, 2 * tokens * top * 3 * size * hidden)

    return Case(f"{model} experts {storage}, {tokens} tokens", make, layers)


def _one_by_one(
    x: Tensor, ids: Tensor, weights: Tensor, parts: tuple[Any, Any, Any], sizes: tuple[int, int]
) -> Tensor:
    """In fp32, expert by expert, with decoded weights."""
    size, hidden = sizes
    out = torch.zeros(len(x), hidden, device=x.device)
    for expert in ids.unique().tolist():
        token, place = (ids == expert).nonzero(as_tuple=True)
        gate, up, down = (
            gemm.decode(one, torch.float32, expert * rows, rows)
            for one, rows in zip(parts, (size, size, hidden), strict=True)
        )
        given = x[token].float()
        inner = torch.nn.functional.silu(given @ gate.t()) * (given @ up.t())
        out.index_add_(0, token, (inner @ down.t()) * weights[token, place, None])
    return out


def _add_norm(where: str, tokens: int, size: int) -> Case:
    def make() -> Made:
        x = torch.randn(tokens, size, device=where).to(_dtype(where))
        residual = torch.randn(tokens, size, device=where)
        weight = torch.ones(size, device=where)

        def compute() -> Tensor:
            return norm.add_rms_norm(x, residual.clone(), weight, 1e-6)[0]

        def reference() -> tuple[Tensor, slice]:
            total = x.float() + residual
            return torch.nn.functional.rms_norm(total, (size,), eps=1e-6), slice(None)

        return Made(compute, reference, tokens * size * 20, 0)

    return Case(f"add_rms_norm, {tokens} x {size}", make, 64)
