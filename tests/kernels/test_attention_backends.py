"""Adapters to external kernels, whose modules are played: these check what they are given against
the documented interface, and compute by the definition."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from pagoda.kernels.attention.backend import AttentionKind, OwnAttention
from pagoda.kernels.attention.flash import FlashAttention
from pagoda.kernels.attention.infer import FlashInfer
from tests.kernels.triton.paged import MIXES, Case

BLOCK, DIM = 16, 64


def attend(q, k, v, scale, left):
    """The last len(q) tokens of k and v [tokens, heads, dim] see `left` before them; -1: all."""
    if not len(k):
        return torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    query = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))[None]
    hidden = (key > query) | ((key < query - left) if left >= 0 else torch.tensor(False))
    logits = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1), v.nan_to_num())


def played_varlen(*args, **kwargs):
    """As torch's `varlen_attn`."""
    given = inspect.signature(varlen_attn).bind(*args, **kwargs).arguments
    q, k, v, starts = (given[name] for name in ("query", "key", "value", "cu_seq_q"))
    lens, table = given["seqused_k"], given["block_table"]
    assert k.shape == v.shape and k.shape[1] == BLOCK and k.shape[3] == q.shape[2]
    assert k.stride(3) == v.stride(3) == q.stride(2) == 1  # else it would copy the cache
    assert {x.dtype for x in (starts, lens, table)} == {torch.int32}
    assert given["cu_seq_k"] is None and len(starts) == len(lens) + 1 == len(table) + 1
    assert given["max_q"] >= starts.diff().max() and given["max_k"] >= lens.max()
    assert given["enable_gqa"] == (q.shape[1] != k.shape[2])
    left, right = given["window_size"]
    assert right == 0
    out = torch.full_like(q, torch.nan)
    for i, count in enumerate(lens.tolist()):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        keys, values = (x[table[i].long()].flatten(0, 1)[:count] for x in (k, v))
        out[rows] = attend(q[rows], keys, values, given["scale"], left)
    return out


class PlayedWrapper:
    """As both wrappers of FlashInfer."""

    def __init__(self, workspace, layout, **how):
        assert workspace.dtype == torch.uint8 and layout == "HND"
        self.how = how

    def _keep(self, indptr, indices, last_page_len, heads, kv_heads, dim, page_size):
        assert {x.dtype for x in (indptr, indices, last_page_len)} == {torch.int32}
        assert len(indices) == indptr[-1] and (indptr.diff() > 0).all()
        assert ((last_page_len > 0) & (last_page_len <= page_size)).all()
        self.heads, self.page_size = (heads, kv_heads, dim), page_size
        self.paged = indptr, indices, last_page_len

    def run(self, q, caches):
        assert q.shape[1:] == (self.heads[0], self.heads[2])
        k, v = caches
        assert k.shape[1:] == v.shape[1:] == (self.heads[1], self.page_size, self.heads[2])
        assert k.stride() == v.stride() and k.stride(3) == 1
        indptr, indices, last_page_len = self.paged
        out = torch.full_like(q, torch.nan)
        for i in range(len(indptr) - 1):
            rows = slice(int(self.starts[i]), int(self.starts[i + 1]))
            blocks = indices[int(indptr[i]) : int(indptr[i + 1])].long()
            count = (len(blocks) - 1) * self.page_size + int(last_page_len[i])
            keys, values = (x[blocks].transpose(1, 2).flatten(0, 1)[:count] for x in (k, v))
            out[rows] = attend(q[rows], keys, values, self.scale, self.left)
        return out


class PlayedPrefill(PlayedWrapper):
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
             num_qo_heads, num_kv_heads, head_dim_qk, page_size, *, causal, window_left, sm_scale,
             q_data_type, kv_data_type):  # fmt: skip
        assert causal and qo_indptr.dtype == torch.int32
        self._keep(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
                   num_kv_heads, head_dim_qk, page_size)  # fmt: skip
        self.starts, self.left, self.scale = qo_indptr.clone(), window_left, sm_scale


class PlayedDecode(PlayedWrapper):
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             *, window_left, sm_scale, q_data_type, kv_data_type):  # fmt: skip
        self._keep(indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)
        assert self.how["use_cuda_graph"]
        names = ("indptr", "indices", "last_page_len")
        buffers = [self.how[f"paged_kv_{name}_buffer"] for name in names]
        for buffer, values in zip(buffers, self.paged, strict=True):
            buffer[: len(values)] = values  # a graph reads these alone
        self.paged = tuple(buffers)
        self.starts, self.left, self.scale = torch.arange(len(indptr)), window_left, sm_scale


PLAYED = SimpleNamespace(
    BatchPrefillWithPagedKVCacheWrapper=PlayedPrefill,
    BatchDecodeWithPagedKVCacheWrapper=PlayedDecode,
)
OWN = OwnAttention("torch", None)


@pytest.fixture(params=["flash-attn", "flashinfer"])
def backend(request):
    if request.param == "flash-attn":
        return FlashAttention(played_varlen, OWN)
    return FlashInfer(PLAYED, OWN, torch.device("cpu"), torch.float32, BLOCK)


def step_of(case: Case, fixed: bool = False, on_host: bool = True) -> SimpleNamespace:
    starts, lens = case.starts, case.lens
    return SimpleNamespace(
        query_start=starts, kv_lens=lens, fixed=fixed, max_kv_len=int(lens.max()),
        max_query_len=1 if fixed else int(starts.diff().max()),
        host_query_start=starts.numpy() if on_host else None,
        host_kv_lens=lens.numpy() if on_host else None,
    )  # fmt: skip


@pytest.mark.parametrize("mix", ["first token", "decodes", "prefill", "mixed"])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("heads", [2, 6])
def test_adapters_equal_the_reference(backend, mix, window, heads):
    case = Case(MIXES[mix], heads=heads, head_dim=DIM, block_size=BLOCK, how={"window": window})
    # What a real cache holds is finite.
    case.k_cache.nan_to_num_(), case.v_cache.nan_to_num_()
    kind = AttentionKind(heads, 2, DIM, DIM**-0.5, window)
    for on_host in (True, False):
        plan = backend.plan(kind, case.table, step_of(case, on_host=on_host))
        out = backend.attend(
            case.q, case.k_cache, case.v_cache, plan, scale=DIM**-0.5, window=window
        )
        torch.testing.assert_close(out, case.expected(), rtol=1e-5, atol=1e-5)


def test_a_captured_step_is_planned_in_place(backend):
    """It is padded by two requests without tokens, and grows by a token from replay to replay,
    one of its requests into the next block."""
    case = Case([(1, 40), (1, 17), (0, 0), (0, 0)], head_dim=DIM, block_size=BLOCK, padding=2)
    case.k_cache.nan_to_num_(), case.v_cache.nan_to_num_()
    step, kind = step_of(case, fixed=True), AttentionKind(6, 2, DIM, DIM**-0.5)
    step.max_kv_len = 64
    case.lens[:2] = torch.tensor([39, 15])
    plan = backend.plan(kind, case.table, step)
    read = getattr(getattr(plan, "wrapper", None), "paged", ())
    for _ in range(2):
        case.lens[:2] += 1
        plan.update()
        out = backend.attend(case.q, case.k_cache, case.v_cache, plan, scale=DIM**-0.5)
        torch.testing.assert_close(out[:2], case.expected()[:2], rtol=1e-5, atol=1e-5)
        assert out.isfinite().all()
        now = getattr(getattr(plan, "wrapper", None), "paged", ())
        assert all(one is other for one, other in zip(read, now, strict=True))


def test_both_layouts_give_the_same():
    """The reference, which reads either by its strides."""
    for dtype in (torch.float32, torch.int8):
        case = Case(MIXES["mixed"], head_dim=24, dtype=dtype)
        expected = case.expected()
        k = case.k_cache
        if dtype == torch.int8:
            dim = k.shape[3] - 4
            coded = k[..., :dim].transpose(2, 3).flatten(2)
            columns = torch.cat((coded, k[..., dim:].flatten(2)), dim=2)
            k = columns.unflatten(2, (-1, k.shape[2])).transpose(2, 3)
        else:
            k = k.transpose(2, 3).contiguous().transpose(2, 3)
        assert k.stride(2) == 1 and k.shape == case.k_cache.shape
        case.k_cache = k
        assert np.array_equal(case.expected().numpy(), expected.numpy())
