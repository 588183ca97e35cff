"""What attention needs beside its results, by tokens, requests and context; nothing is computed."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.kernels.attention.backend import AttentionKind, OwnAttention
from pagoda.kernels.triton import attention, attention_cuts
from pagoda.kernels.triton import ops as triton_ops
from pagoda.runtime import profile
from pagoda.runtime.device import make_device
from tests.kernels.triton.paged import Case

BLOCK, MIB = 64, 1 << 20
SHAPES = {128: (32, 8), 512: (32, 4)}
"""Heads and KV heads, of Llama 3.1 8B and of full layers of Gemma 4 31B, by their size."""


class Launches:
    """In the place of a kernel."""

    def __init__(self):
        self.partial: list[int] = []
        """Bytes of partial results, by launch."""
        self.tokens = 0

    def __getitem__(self, grid):
        return self._launch

    def _launch(self, out, partial, tops, arrived, *rest, **constants):
        self.tokens += len(out)
        self.partial.append(0 if partial is None else partial.nbytes + tops.nbytes)


@pytest.fixture
def launches(monkeypatch) -> Launches:
    found = Launches()
    monkeypatch.setattr(attention, "_paged_attention", found)
    return found


def attend(counts: list[int], context: int, dim: int, knows: bool = True) -> None:
    """A step of requests with so many queries each, whose tables have room for `context`."""
    heads, kv_heads = SHAPES[dim]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    k, v = torch.empty(2, 2, kv_heads, BLOCK, dim, device="meta", dtype=torch.bfloat16)
    table = torch.empty(len(counts), context // BLOCK, device="meta", dtype=torch.int32)
    attention.paged_attention(
        torch.empty(starts[-1], heads, dim, device="meta", dtype=torch.bfloat16), k, v, table,
        torch.empty(len(starts), device="meta", dtype=torch.int32),
        torch.empty(len(counts), device="meta", dtype=torch.int32),
        scale=1.0, host_query_start=starts if knows else None,
    )  # fmt: skip


def row_bytes(context: int, dim: int) -> int:
    """Of a token: fp32 sums, the largest logit and the sum of weights, of each head and split. One
    more tile of keys than the context has, for it may begin within one."""
    keys = 32 if dim > 128 else 64
    return SHAPES[dim][0] * min(32, -(-(context + keys) // 256)) * (dim + 2) * 4


@pytest.mark.parametrize("dim", SHAPES)
@pytest.mark.parametrize("context", [2048, 16384, 131072])
@pytest.mark.parametrize(
    ("counts", "few"),
    [
        ([1] * 64, 64),
        ([1808, *[1] * 240], 240),
        ([512] * 4, 0),
        ([16, 17, 3, 2012], 19),
    ],
    ids=["decodes", "decodes beside a prompt", "prompts", "ends of prompts"],
)
def test_partial_results_take_room_for_tokens_that_have_some(launches, dim, context, counts, few):
    attend(counts, context, dim)
    # A launch without any has room for one row, that there be an address.
    assert sum(launches.partial) == max(few, 1) * row_bytes(context, dim)
    assert launches.tokens == sum(counts)


@pytest.mark.parametrize("dim", SHAPES)
def test_a_launch_has_a_bound(launches, dim):
    """256 requests of 16 queries each, and four of them more than asked for."""
    attend([16] * 256, 131072, dim)
    most = 256 * MIB + 4 * 16 * row_bytes(131072, dim)
    assert max(launches.partial) <= most and len(launches.partial) > 4
    assert sum(launches.partial) == 256 * 16 * row_bytes(131072, dim)
    assert launches.tokens == 256 * 16


@pytest.mark.parametrize("dim", SHAPES)
def test_captured_steps_take_room_for_any_numbers(launches, dim):
    attend([1] * 64, 16384, dim, knows=False)
    attend([1, 16, 16], 16384, dim, knows=False)
    assert launches.partial == [64 * row_bytes(16384, dim), 33 * row_bytes(16384, dim)]


@pytest.mark.parametrize("dim", SHAPES)
@pytest.mark.parametrize("context", [2048, 16384, 131072])
@pytest.mark.parametrize(("tokens", "reqs"), [(2048, 256), (2048, 4), (8192, 64), (64, 256)])
def test_the_profiled_step_is_the_worst(launches, dim, context, tokens, reqs):
    """No step with so many tokens and requests takes more."""
    heads, kv_heads = SHAPES[dim]
    group = KVGroupSpec("full", (0,), kv_heads, dim, BLOCK, kv_dtype="bfloat16")
    backend, kind = OwnAttention("triton", triton_ops), AttentionKind(heads, kv_heads, dim, 1.0)

    def forward(batch):
        q = torch.empty(batch.num_tokens, heads, dim, device="meta", dtype=torch.bfloat16)
        where, plan = batch.attended(backend, kind, 0)
        k, v = torch.empty(2, 2, kv_heads, BLOCK, dim, device="meta", dtype=torch.bfloat16)
        assert where.block_table.shape[1] == context // BLOCK
        assert batch.kv_lens.max() <= context, "no block table has room for more"
        backend.attend(q, k, v, plan, scale=1.0)
        return torch.zeros(batch.num_tokens, 1)

    whole = SimpleNamespace(begins=True, ends=True)
    model = SimpleNamespace(spec=whole, forward=forward, compute_logits=lambda x: x)
    profile.largest_step(model, [group], make_device("cpu"), tokens, reqs, reqs, context)
    profiled = max(launches.partial)
    assert profiled <= 256 * MIB + 4 * 16 * row_bytes(context, dim)
    random = np.random.default_rng(3)
    launches.partial.clear()
    for kind_of_step in itertools.chain(range(0, min(reqs, tokens), 40), [min(reqs, tokens) - 1]):
        # Some decode, some verify guesses or end their prompt, and one takes what is left.
        counts = random.integers(1, 17, kind_of_step)
        while counts.sum() >= tokens:
            counts = np.maximum(1, counts // 2) if counts.max() > 1 else counts[: tokens - 1]
        attend([*counts.tolist(), tokens - int(counts.sum())], context, dim)
    # Cuts are between each four requests, of which these may have others.
    assert max(launches.partial) <= profiled + 4 * 16 * row_bytes(context, dim)


LONG = [(1, 200), (1, 20), (3, 129), (17, 90), (0, 3), (1, 130), (2, 150)]


@pytest.mark.parametrize(("most", "padding"), [(1, 3), (4000, 0)])
def test_cuts_change_no_bit(device, monkeypatch, most, padding):
    monkeypatch.setattr(attention, "_MIN_SPLIT", 64)
    whole = Case(LONG, device=device, padding=padding)
    expected = whole.run(attention.paged_attention)
    monkeypatch.setattr(attention_cuts, "_MOST_PARTIAL", most)
    cut = Case(LONG, device=device, padding=padding, how={"host_query_start": whole.starts.numpy()})
    assert torch.equal(cut.run(attention.paged_attention), expected)


def test_cuts_with_pictures(device, monkeypatch):
    monkeypatch.setattr(attention, "_MIN_SPLIT", 64)
    first = Case(LONG, device=device)
    ends = [kv - n + 1 + i for n, kv in LONG for i in range(n)]
    how = {"sees_until": torch.tensor(ends, dtype=torch.int32), "window": 64}
    expected = Case(LONG, device=device, how=how).run(attention.paged_attention)
    monkeypatch.setattr(attention_cuts, "_MOST_PARTIAL", 1)
    how["host_query_start"] = first.starts.numpy()
    assert torch.equal(Case(LONG, device=device, how=how).run(attention.paged_attention), expected)
