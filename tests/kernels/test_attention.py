"""Paged attention against the definition, in fp64 and one head at a time."""

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch

from pagoda.kernels import selector
from pagoda.kernels.ref import attention
from tests.kernels.caches import poisoned

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def rounded_to_int8(x: torch.Tensor) -> torch.Tensor:
    """Whole multiples of a 127th of each row's largest magnitude."""
    wide = x.float().numpy()
    step = np.abs(wide).max(-1, keepdims=True) / np.float32(127)
    return torch.from_numpy(np.rint(wide / step) * step)


def rounded_to_q4_0(x: torch.Tensor) -> torch.Tensor:
    kind = gguf.GGMLQuantizationType.Q4_0
    if x.numel() == 0:
        return x.float()
    return torch.from_numpy(gguf.dequantize(gguf.quantize(x.float().numpy(), kind), kind))


def seen_until(
    requests: list[tuple[int, int]], spans: tuple[tuple[int, int, int], ...]
) -> torch.Tensor:
    """How many of its request's tokens each query sees."""
    ends = []
    for row, (queries, kv_len) in enumerate(requests):
        for at in range(kv_len - queries, kv_len):
            mine = [end for req, first, end in spans if req == row and first <= at < end]
            ends.append(min([kv_len, *mine]) if mine else at + 1)
    return torch.tensor(ends, dtype=torch.int32)


@dataclass
class Case:
    """Requests of (queries, KV length) over a cache whose unused places are all NaN."""

    requests: list[tuple[int, int]]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    sinks: torch.Tensor | None = None
    chunked: bool = False
    cap: float | None = None
    spans: tuple[tuple[int, int, int], ...] = ()
    """(request, first, end) of tokens that see each other."""

    def __post_init__(self):
        torch.manual_seed(3)
        per_request = [-(-kv_len // self.block_size) for _, kv_len in self.requests]
        num_blocks = sum(per_request) + 3
        cache_dtype = self.cache_dtype or self.dtype
        self.k_cache, self.v_cache = poisoned(
            num_blocks, self.kv_heads, self.block_size, self.head_dim, cache_dtype
        )
        free = (1 + torch.randperm(num_blocks - 1)).tolist()  # block 0 is nobody's: NaN
        self.table = torch.zeros(len(self.requests), max(per_request, default=0) + 2).int()
        self.k, self.v = [], []
        for row, (_, kv_len) in enumerate(self.requests):
            for column in range(per_request[row]):
                self.table[row, column] = free.pop()
            k, v = (torch.randn(kv_len, self.kv_heads, self.head_dim) for _ in "kv")
            self.k.append(k.to(self.dtype))
            self.v.append(v.to(self.dtype))
            at = torch.arange(kv_len)
            slots = self.table[row].long()[at // self.block_size] * self.block_size
            slots += at % self.block_size
            attention.store_kv(self.k[-1], self.v[-1], self.k_cache, self.v_cache, slots)
            if cache_dtype == torch.int8:
                self.k[-1], self.v[-1] = rounded_to_int8(self.k[-1]), rounded_to_int8(self.v[-1])
            if cache_dtype == torch.uint8:
                self.k[-1], self.v[-1] = rounded_to_q4_0(self.k[-1]), rounded_to_q4_0(self.v[-1])
        counts = [queries for queries, _ in self.requests]
        self.starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        self.q = torch.randn(sum(counts), self.heads, self.head_dim).to(self.dtype) * 2
        self.sees_until = seen_until(self.requests, self.spans)

    def run(self, window: int | None = None) -> torch.Tensor:
        lens = torch.tensor([kv_len for _, kv_len in self.requests], dtype=torch.int32)
        form = selector.native_form(self.q.device, self.q.dtype) or attention
        return form.paged_attention(
            self.q, self.k_cache, self.v_cache, self.table, self.starts, lens,
            scale=self.head_dim**-0.5, window=window, chunked=self.chunked, sinks=self.sinks,
            cap=self.cap, sees_until=self.sees_until if self.spans else None,
        )  # fmt: skip

    def expected(self, window: int | None = None) -> np.ndarray:
        out = np.zeros(self.q.shape)
        for row, (queries, kv_len) in enumerate(self.requests):
            for i in range(queries):
                token = int(self.starts[row]) + i
                at = kv_len - queries + i
                last = int(self.sees_until[token])
                first = 0 if window is None else max(0, at + 1 - window)
                if self.chunked:
                    first = at // window * window
                for head in range(self.heads):
                    kv_head = head // (self.heads // self.kv_heads)
                    k = self.k[row][first:last, kv_head].double().numpy()
                    v = self.v[row][first:last, kv_head].double().numpy()
                    scores = k @ self.q[token, head].double().numpy() * self.head_dim**-0.5
                    if self.cap is not None:
                        scores = self.cap * np.tanh(scores / self.cap)
                    sink = -np.inf if self.sinks is None else float(self.sinks[head])
                    top = max(scores.max(), sink)
                    weights = np.exp(scores - top)
                    out[token, head] = weights @ v / (weights.sum() + np.exp(sink - top))
        return out

    def check(self, window: int | None = None) -> None:
        out = self.run(window)
        assert out.dtype == self.dtype
        bound = TOLERANCE[self.dtype]
        np.testing.assert_allclose(
            out.double().numpy(), self.expected(window), rtol=bound, atol=bound
        )


MIXES = {
    "one decode": [(1, 9)],
    "first token": [(1, 1)],
    "decodes": [(1, 7), (1, 8), (1, 9), (1, 1), (1, 30)],
    "prefill": [(13, 13)],
    "chunk": [(5, 22)],
    "mixed": [(1, 17), (6, 6), (1, 3), (4, 19), (1, 16), (2, 2)],
    "idle request": [(0, 5), (3, 7), (0, 0)],
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_equals_definition(mix, window):
    Case(MIXES[mix]).check(window)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [1, 5, 6, 8, 100])
def test_chunks(mix, window, dtype):
    """fp16 has no native form, so that the reference is looked at, too."""
    Case(MIXES[mix], dtype=dtype, chunked=True).check(window)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sinks", [None, torch.linspace(-3, 3, 6)])
def test_capped_logits(mix, dtype, sinks):
    """Sinks are not capped. fp16 has no native form."""
    Case(MIXES[mix], dtype=dtype, cap=1.5, sinks=sinks).check(5)


@pytest.mark.parametrize("window", [None, 5, 100])
def test_spans_that_see_each_other(window):
    requests = [(1, 17), (9, 12), (30, 30), (4, 19)]
    spans = ((0, 10, 16), (1, 4, 11), (2, 0, 6), (2, 9, 30), (3, 17, 19))
    Case(requests, spans=spans).check(window)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    Case(MIXES["mixed"], dtype=dtype).check()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 5])
def test_sinks(mix, dtype, window):
    """fp16 has no native form, so that the reference is looked at, too."""
    sinks = torch.tensor([-1.0, 0.0, 1.0, 4.0, 30.0, -30.0])
    Case(MIXES[mix], dtype=dtype, sinks=sinks).check(window)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_cache(mix, window, dtype):
    Case(MIXES[mix], dtype=dtype, cache_dtype=torch.int8).check(window)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("block_size", [4, 16])
def test_q4_0_cache(mix, window, block_size):
    case = Case(MIXES[mix], head_dim=64, block_size=block_size, cache_dtype=torch.uint8)
    case.check(window)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (9, 3, 64), (8, 1, 24)])
def test_head_layouts(heads, kv_heads, head_dim):
    Case(MIXES["mixed"], heads=heads, kv_heads=kv_heads, head_dim=head_dim).check()


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_block_sizes(block_size):
    Case(MIXES["mixed"], block_size=block_size).check(window=6)


def test_no_tokens():
    case = Case([])
    assert case.run().shape == (0, case.heads, case.head_dim)


@pytest.mark.parametrize("window", [None, 11])
def test_bounds_on_temporaries_change_nothing(window, monkeypatch):
    """With tiny bounds, heads and queries are cut into pieces and batches into requests."""
    monkeypatch.setattr(attention, "_GATHER_ELEMENTS", 500)
    monkeypatch.setattr(attention, "_MASK_ELEMENTS", 50)
    monkeypatch.setattr(attention, "_MIN_QUERIES", 1)
    Case([*MIXES["mixed"], (9, 40), (1, 40)]).check(window)


def test_rows_of_no_request_are_zero():
    """A step padded to a captured size has more rows than its requests own."""
    case = Case([(1, 4), (3, 3)])
    expected = case.expected()
    case.q = torch.cat((case.q, torch.full((2, *case.q.shape[1:]), torch.nan)))
    out = case.run()
    np.testing.assert_allclose(out[:4].double().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[4:], torch.zeros_like(out[4:]))


def test_long_context():
    Case([(1, 8200), (2, 8195)], block_size=16).check()


def test_store_kv_writes_nothing_else():
    k, v = torch.randn(2, 2, 5), torch.randn(2, 2, 5)
    k_cache, v_cache = torch.zeros(3, 2, 5, 4).transpose(2, 3), torch.zeros(3, 2, 4, 5)
    attention.store_kv(k, v, k_cache, v_cache, torch.tensor([11, 2]))
    for stored, values in ((k_cache, k), (v_cache, v)):
        assert torch.equal(stored[2, :, 3], values[0])
        assert torch.equal(stored[0, :, 2], values[1])
        assert stored.count_nonzero() == 20
